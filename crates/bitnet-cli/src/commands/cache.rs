//! `bitnet pull`, `list` and `rm`: the models in the Hugging Face cache.

use bitnet::hub::{CachedModel, ModelId, Settings, cached_models, remove_cached};
use serde_json::json;

use crate::{
    args::{ListArgs, PullArgs, RmArgs},
    error::CliError,
    model_arg, output,
};

fn settings() -> Result<Settings, CliError> {
    Settings::from_env().map_err(|e| bitnet::Error::from(e).into())
}

pub fn pull(args: &PullArgs) -> Result<(), CliError> {
    if ModelId::parse(&args.model).is_none() {
        let cure = "give org/name, with @revision or :file if wanted";
        return Err(CliError::usage("this is not the name of a model on a hub", &args.model, cure));
    }
    let path = model_arg::open_files(&args.model)?.path;
    output::line(path.unwrap_or_default().display())
}

pub fn list(args: &ListArgs) -> Result<(), CliError> {
    let settings = settings()?;
    let models = cached_models(&settings).map_err(bitnet::Error::from)?;
    if args.json {
        let rows: Vec<_> = (models.iter())
            .map(|m| json!({"model": m.repo, "revisions": m.revisions, "bytes": m.bytes, "path": m.path}))
            .collect();
        return output::json(&rows);
    }
    let width = models.iter().map(|m| m.repo.len()).max().unwrap_or(0);
    for model in &models {
        let revisions = model.revisions.join(", ");
        output::line(format_args!("{:width$}  {:>9}  {revisions}", model.repo, size(model)))?;
    }
    if models.is_empty() {
        output::note(format_args!(
            "no models in {}; `bitnet pull org/name` adds one",
            settings.cache.display()
        ));
    }
    Ok(())
}

pub fn remove(args: &RmArgs) -> Result<(), CliError> {
    let removed = remove_cached(&settings()?, &args.model).map_err(bitnet::Error::from)?;
    output::note(format_args!("removed {}, {}", removed.repo, size(&removed)));
    Ok(())
}

fn size(model: &CachedModel) -> String {
    match model.bytes {
        bytes @ 1_000_000_000.. => format!("{:.1} GB", bytes as f64 / 1e9),
        bytes => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
