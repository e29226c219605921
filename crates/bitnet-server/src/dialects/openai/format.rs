//! Reads the fields that ask for a format of the text: `response_format`, `guided_regex`,
//! `guided_json` and `guided_choice`.

use crate::{
    generate::grammar::Format,
    http::{error::ApiError, fields::Fields},
};

/// Maximum number of texts to choose from.
const MAX_CHOICES: usize = 1024;

/// Takes the fields, of which at most one may ask for a format. Returns the name of that field with the format.
pub(super) fn take(fields: &mut Fields<'_>) -> Result<Option<(&'static str, Format)>, ApiError> {
    let json = fields.object("response_format")?.map(|format| read(format, false));
    let json = json.transpose()?.flatten();
    let formats = [
        ("response_format", json),
        (
            "guided_regex",
            fields.take::<String>("guided_regex")?.map(|regex| Format::regex(&regex)).transpose()?,
        ),
        (
            "guided_json",
            fields.raw("guided_json").map(|schema| Format::schema("guided_json", schema)).transpose()?,
        ),
        ("guided_choice", Format::choice(fields.list("guided_choice", MAX_CHOICES)?)?),
    ];
    let mut formats = formats.into_iter().filter_map(|(field, format)| Some((field, format?)));
    match (formats.next(), formats.next()) {
        (Some((one, _)), Some((other, _))) => {
            Err(ApiError::field(other, format!("it cannot be combined with {one}")))
        }
        (one, _) => Ok(one),
    }
}

/// Reads a format. If it is `flat`, the description of a schema is part of it, as in OpenAI's Responses API.
pub(crate) fn read(mut fields: Fields<'_>, flat: bool) -> Result<Option<Format>, ApiError> {
    let kind: String = fields.need("type")?;
    let format = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Format::any_object()),
        "json_schema" if flat => return described(fields).map(Some),
        "json_schema" => Some(described(fields.need_object("json_schema")?)?),
        other => return Err(ApiError::unsupported(fields.name("type"), format!("{other:.20?}"))),
    };
    fields.finish()?;
    Ok(format)
}

/// Reads a schema and its description.
fn described(mut fields: Fields<'_>) -> Result<Format, ApiError> {
    // The name and the description are for people. The text always follows the schema, strict or not.
    fields.take::<String>("name")?;
    fields.take::<String>("description")?;
    fields.take::<bool>("strict")?;
    let schema = Format::schema(&fields.name("schema"), fields.need_raw("schema")?)?;
    fields.finish()?;
    Ok(schema)
}
