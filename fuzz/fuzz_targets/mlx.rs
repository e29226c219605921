#![no_main]

use std::sync::LazyLock;

use bitnet_fuzz::{Grouped, Kind, Seed};
use libfuzzer_sys::fuzz_target;

static SEED: LazyLock<Seed> =
    LazyLock::new(|| Seed::new(Kind::Grouped(Grouped::Mlx)).expect("a fixture can be read"));

fuzz_target!(|bytes: &[u8]| {
    // A model or one error is right, a panic is a finding; -timeout and -rss_limit_mb watch the rest.
    let _either = SEED.open(bytes.to_vec());
});
