//! Fields that change no token: clients send them for OpenAI's own bookkeeping, or out of habit.

use bitnet::model::ChatTemplate;
use serde_json::{Value, json};

use crate::http::{error::ApiError, fields::Fields};

/// Takes those that both endpoints have.
pub(crate) fn of_both(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    fields.ignore(&[
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "safety_identifier",
        "cache_prompt",
    ])?;
    of_other_servers(fields)?;
    fields.harmless("store", &[json!(false)])?;
    fields.harmless("metadata", &[json!({})])?;
    fields.harmless("service_tier", &[json!("auto"), json!("default")])
}

/// Takes fields of vLLM, llama.cpp, SGLang and OpenRouter that this server lacks, at the values that ask for nothing.
fn of_other_servers(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    fields.ignore(&["request_id", "rid", "timings_per_token", "usage", "provider"])?;
    let (off, none, zero, one) = (json!(false), json!([]), json!(0), json!(1));
    let neutral: [(&[&'static str], &[Value]); 7] = [
        (
            &[
                "use_beam_search",
                "early_stopping",
                "include_stop_str_in_output",
                "continue_final_message",
                "return_tokens_as_token_ids",
                "return_hidden_states",
                "return_tokens",
                "post_sampling_probs",
                "no_stop_trim",
                "grammar_lazy",
                "watermark",
            ],
            std::slice::from_ref(&off),
        ),
        (
            &[
                "skip_special_tokens",
                "spaces_between_special_tokens",
                "add_generation_prompt",
                "parse_tool_calls",
            ],
            &[json!(true)],
        ),
        (
            &[
                "bad_words",
                "allowed_token_ids",
                "documents",
                "logits_processors",
                "image_data",
                "lora",
                "transforms",
                "plugins",
                "models",
                "samplers",
                "grammar_triggers",
                "response_fields",
                "dry_sequence_breakers",
            ],
            std::slice::from_ref(&none),
        ),
        (
            &[
                "n_probs",
                "n_keep",
                "n_discard",
                "min_keep",
                "t_max_predict_ms",
                "mirostat",
                "dynatemp_range",
                "xtc_probability",
                "dry_multiplier",
                "truncate_prompt_tokens",
                "n_indent",
            ],
            &[zero.clone(), json!(0.0), json!(-1)],
        ),
        (
            &["length_penalty", "repeat_penalty", "typical_p", "tfs_z", "dynatemp_exponent"],
            &[one.clone(), json!(1.0)],
        ),
        (&["id_slot", "slot_id", "top_n_sigma"], &[json!(-1), json!(-1.0)]),
        (
            &[
                "grammar",
                "guided_grammar",
                "ebnf",
                "regex",
                "chat_template",
                "vllm_xargs",
                "mm_processor_kwargs",
            ],
            &[json!(""), json!({})],
        ),
    ];
    for (names, values) in neutral {
        names.iter().try_for_each(|name| fields.only(name, values))?;
    }
    // They say how what is refused above would work.
    fields.ignore(&[
        "xtc_threshold",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "mirostat_tau",
        "mirostat_eta",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
    ])
}

/// Takes those of chats, and refuses fields that could change tokens and are not supported.
pub(super) fn of_chat(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    of_both(fields)?;
    fields.only("best_of", &[json!(1)])?;
    fields.only("echo", &[json!(false)])?;
    fields.only("add_special_tokens", &[json!(false)])?;
    fields.only("modalities", &[json!(["text"])])?;
    ["audio", "web_search_options", "moderation"].into_iter().try_for_each(|field| fields.only(field, &[]))
}

/// Takes `verbosity`, as a variable for a template that uses it; without such a template, it changes no token.
pub(crate) fn verbosity(
    fields: &mut Fields<'_>,
    template: Option<&ChatTemplate>,
) -> Result<Vec<(String, String)>, ApiError> {
    if !template.is_some_and(|template| template.asks_for("verbosity")) {
        return fields.harmless("verbosity", &[]).map(|()| Vec::new());
    }
    let verbosity: Option<String> = fields.take("verbosity")?;
    Ok(verbosity
        .map(|verbosity| ("verbosity".to_owned(), json!(verbosity).to_string()))
        .into_iter()
        .collect())
}
