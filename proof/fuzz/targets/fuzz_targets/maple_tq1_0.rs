#![no_main]

bitnet_fuzz_targets::open_target!("maple_tq1_0");
