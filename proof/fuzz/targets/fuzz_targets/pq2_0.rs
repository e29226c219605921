#![no_main]

bitnet_fuzz_targets::open_target!("pq2_0");
