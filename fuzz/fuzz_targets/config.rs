#![no_main]

use bitnet_fuzz::Kind;

bitnet_fuzz_targets::open_target!(Kind::Config);
