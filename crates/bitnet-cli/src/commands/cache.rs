//! `bitnet pull`, `list` and `rm`: the models in the Hugging Face cache.

use bitnet::hub::{ModelId, Settings, cached_models, remove_cached};
use serde_json::json;

use crate::{error::CliError, model_arg, output};

fn settings() -> Result<Settings, CliError> {
    Settings::from_env().map_err(|e| bitnet::Error::from(e).into())
}

pub fn pull(model: &str) -> Result<(), CliError> {
    if ModelId::parse(model).is_none() {
        let cure = "give org/name, with @revision or :file if wanted";
        return Err(CliError::usage("this is not the name of a model on a hub", model, cure));
    }
    let path = model_arg::open_files(model)?.path;
    output::line(path.unwrap_or_default().display())
}

pub fn list(as_json: bool) -> Result<(), CliError> {
    let settings = settings()?;
    let models = cached_models(&settings).map_err(bitnet::Error::from)?;
    if as_json {
        let rows: Vec<_> = (models.iter())
            .map(|m| json!({"model": m.repo, "revisions": m.revisions, "bytes": m.bytes, "path": m.path}))
            .collect();
        return output::json(&rows);
    }
    let width = models.iter().map(|m| m.repo.len()).max().unwrap_or(0);
    for model in &models {
        let revisions = model.revisions.join(", ");
        output::line(format_args!("{:width$}  {:>9}  {revisions}", model.repo, output::size(model.bytes)))?;
    }
    if models.is_empty() {
        output::note(format_args!(
            "no models in {}; `bitnet pull org/name` adds one",
            settings.cache.display()
        ));
    }
    Ok(())
}

pub fn remove(model: &str) -> Result<(), CliError> {
    let removed = remove_cached(&settings()?, model).map_err(bitnet::Error::from)?;
    output::note(format_args!("removed {}, {}", removed.repo, output::size(removed.bytes)));
    Ok(())
}
