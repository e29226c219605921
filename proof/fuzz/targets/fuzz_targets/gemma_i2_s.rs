#![no_main]

bitnet_fuzz_targets::open_target!("gemma_i2_s");
