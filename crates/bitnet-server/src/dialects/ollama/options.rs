//! Reads `options`: the settings that have the same names as for chats, and Ollama's own.

use bitnet::{inference::GenerationConfig, model::GenerationDefaults};
use serde_json::{Value, json};

use crate::{
    generate::sampling,
    http::{
        error::{ApiError, Names},
        fields::{EXACT, Fields},
    },
};

/// Options that decide where and how fast a model runs.
const OF_THE_MACHINE: [&str; 10] = [
    "num_batch",
    "num_gpu",
    "main_gpu",
    "low_vram",
    "f16_kv",
    "numa",
    "use_mmap",
    "use_mlock",
    "num_thread",
    "vocab_only",
];

/// What Ollama's clients call the fields of a request whose prompt is in `field`.
pub(super) fn names(field: &'static str) -> Names {
    let renamed = [
        ("prompt", field),
        ("max_tokens", "options.num_predict"),
        ("repetition_penalty", "options.repeat_penalty"),
    ];
    Names::new(renamed).within("options.")
}

/// Takes `options`, for a prompt of this many tokens.
pub(super) fn config(
    fields: &mut Fields<'_>,
    defaults: &GenerationDefaults,
    prompt: usize,
) -> Result<GenerationConfig, ApiError> {
    let Some(mut options) = fields.object("options")? else {
        let none = sampling::config(&mut Fields::parse(b"{}")?, defaults)?;
        return Ok(GenerationConfig { max_new_tokens: usize::MAX, ..none });
    };
    let random = options.peek("seed").is_some_and(|seed| seed.get() == "-1");
    let mut config = sampling::config(&mut options, defaults)?;
    // Ollama's clients ask for a fresh seed by -1.
    config.seed = config.seed.filter(|_| !random);
    if let Some(penalty) = options.take("repeat_penalty")? {
        config.repetition_penalty = penalty;
    }
    config.max_new_tokens = match options.take::<f64>("num_predict")? {
        // As many as the context has room for.
        None | Some(-1.0 | -2.0) => usize::MAX,
        Some(number) if number.fract() == 0.0 && (0.0..=EXACT).contains(&number) => number as usize,
        Some(_) => return Err(ApiError::field("options.num_predict", "it must be an integer from -2")),
    };
    if let Some(context) = options.take::<usize>("num_ctx")? {
        match context.checked_sub(prompt).filter(|&left| left > 0) {
            Some(left) => config.max_new_tokens = config.max_new_tokens.min(left),
            None => {
                let problem = format!("the prompt has {prompt} tokens and needs room for one more");
                return Err(ApiError::field("options.num_ctx", problem));
            }
        }
    }
    rest(&mut options, config.has_penalties())?;
    options.finish()?;
    Ok(config)
}

/// Takes the options that change no token, and refuses those that could and are not supported.
fn rest(options: &mut Fields<'_>, penalised: bool) -> Result<(), ApiError> {
    if penalised {
        // Penalties look at the whole text.
        options.only("repeat_last_n", &[json!(-1)])?;
        options.only("penalize_newline", &[json!(true)])?;
    }
    options.ignore(&["repeat_last_n", "penalize_newline"])?;
    let neutral: [(&'static str, &[Value]); 3] = [
        ("mirostat", &[json!(0), json!(0.0)]),
        ("tfs_z", &[json!(1), json!(1.0)]),
        ("typical_p", &[json!(1), json!(1.0)]),
    ];
    for (field, neutral) in neutral {
        options.only(field, neutral)?;
    }
    options.ignore(&["mirostat_tau", "mirostat_eta", "num_keep"])?;
    options.ignore(&OF_THE_MACHINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: Value) -> Result<GenerationConfig, ApiError> {
        let body = json!({"options": options}).to_string();
        config(&mut Fields::parse(body.as_bytes()).unwrap(), &GenerationDefaults::default(), 10)
    }

    #[test]
    fn options_have_ollamas_names() {
        let config = read(
            json!({"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 7, "stop": ["x"],
            "repeat_penalty": 1.5, "num_predict": 20, "num_ctx": 25, "num_thread": 4}),
        )
        .unwrap();
        assert_eq!((config.temperature, config.top_k, config.seed), (0.5, 3, Some(7)));
        assert_eq!((config.repetition_penalty, config.stop_strings), (1.5, vec!["x".to_owned()]));
        assert_eq!(config.max_new_tokens, 15, "the rest of num_ctx");
        for unlimited in [
            json!({}),
            json!({"num_predict": -1}),
            json!({"num_predict": -2}),
            Value::Null,
            json!({"seed": -1, "top_k": -1, "top_p": 0}),
        ] {
            let config = read(unlimited).unwrap();
            assert_eq!((config.max_new_tokens, config.seed, config.top_k), (usize::MAX, None, 0));
        }
        assert_eq!(read(json!({"num_predict": 0})).unwrap().max_new_tokens, 0);
    }

    #[test]
    fn what_could_change_a_token_and_is_not_supported_is_refused_by_name() {
        for (options, param) in [
            (json!({"num_predict": -3}), "options.num_predict"),
            (json!({"num_predict": 1.5}), "options.num_predict"),
            (json!({"num_ctx": 10}), "options.num_ctx"),
            (json!({"mirostat": 1}), "options.mirostat"),
            (json!({"tfs_z": 0.5}), "options.tfs_z"),
            (json!({"typical_p": 0.5}), "options.typical_p"),
            (json!({"repeat_penalty": 1.1, "repeat_last_n": 64}), "options.repeat_last_n"),
            (json!({"temprature": 1}), "options.temprature"),
        ] {
            assert_eq!(read(options.clone()).unwrap_err().body.param.as_deref(), Some(param), "{options}");
        }
        read(json!({"repeat_last_n": 64, "mirostat": 0, "typical_p": 1.0})).unwrap();
    }
}
