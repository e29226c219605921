#![no_main]

bitnet_fuzz_targets::open_target!("q2_0_earlier");
