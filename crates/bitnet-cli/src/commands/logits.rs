//! `bitnet logits`: writes the logits of a sequence of tokens to a file.

use bitnet::model::{Batch, Logits, Model};
use safetensors::{Dtype, tensor::TensorView};

use crate::{
    args::{Common, LogitsArgs},
    error::CliError,
    load::{Want, load},
    model_arg, output_file,
};

/// Maximum size of the logits in one file, in bytes.
const MAX_BYTES: usize = 1 << 30;
/// Tokens in a step. Each has a row of logits, which may take half a megabyte.
const STEP: usize = 128;

pub fn run(common: &Common, args: &LogitsArgs) -> Result<(), CliError> {
    let checkpoint = model_arg::open(&args.model)?;
    let (ids, spec) = (&args.ids.0, &checkpoint.spec);
    model_arg::check_ids(&checkpoint, ids, "--ids")?;
    let (tokens, context) = (ids.len(), spec.context);
    if tokens > context {
        let what = format!("{tokens} tokens exceed the model's context");
        return Err(CliError::refused(what, "--ids", format!("give at most {context} ids")));
    }
    if tokens.saturating_mul(spec.vocab) > MAX_BYTES / 4 {
        let what = format!("the logits of {tokens} tokens exceed {MAX_BYTES} bytes");
        let cure = format!("give at most {} ids for this vocabulary", MAX_BYTES / 4 / spec.vocab);
        return Err(CliError::refused(what, "--ids", cure));
    }
    let file = output_file::create(&args.out)?;
    let want = Want { step: tokens.min(STEP), all_logits: true, ..Want::sequences(1, tokens) };
    let mut model = load(common, &checkpoint, want)?.model;

    let mut bytes = Vec::with_capacity(4 * tokens * spec.vocab);
    prefill(&mut *model, ids, |_, row| bytes.extend(row.iter().flat_map(|x| x.to_le_bytes())))?;
    let fail = |e: safetensors::SafeTensorError| {
        CliError::file("write", &args.out)(std::io::Error::other(e.to_string()))
    };
    let view = TensorView::new(Dtype::F32, vec![tokens, spec.vocab], &bytes).map_err(fail)?;
    // Not `serialize_to_file`, which makes files that only their owner can read.
    let whole = safetensors::serialize([("logits", view)], None).map_err(fail)?;
    file.write(whole).map_err(CliError::file("write", &args.out))
}

/// Runs `ids` from position 0 in the largest steps that the model takes, and passes the logits of each token to `each`.
pub fn prefill(
    model: &mut dyn Model,
    ids: &[u32],
    mut each: impl FnMut(usize, &[f32]),
) -> Result<(), CliError> {
    let table: Vec<u32> = (0..ids.len().div_ceil(Batch::BLOCK_TOKENS) as u32).collect();
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    let limits = model.limits();
    let mut start = 0;
    for chunk in ids.chunks(limits.max_tokens.min(limits.max_logit_rows)) {
        batch.clear();
        batch.push(chunk, start, &table, 0..chunk.len());
        model.forward(&batch, &mut logits)?;
        (0..chunk.len()).for_each(|i| each(start + i, logits.row(i)));
        start += chunk.len();
    }
    Ok(())
}
