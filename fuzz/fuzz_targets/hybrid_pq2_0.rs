#![no_main]

use bitnet_fuzz::{Grouped, Kind};

bitnet_fuzz_targets::open_target!(Kind::Grouped(Grouped::HybridPq2_0));
