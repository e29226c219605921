#![no_main]

use std::sync::LazyLock;

use bitnet_fuzz::{Kind, Seed};
use libfuzzer_sys::fuzz_target;

static SEED: LazyLock<Seed> =
    LazyLock::new(|| Seed::new(Kind::Template).expect("a small model can be written"));

fuzz_target!(|bytes: &[u8]| {
    // A model or one error is right, a panic is a finding; -timeout and -rss_limit_mb watch the rest.
    let _either = SEED.open(bytes.to_vec());
});
