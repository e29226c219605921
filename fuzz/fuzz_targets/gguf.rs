#![no_main]

use bitnet_fuzz::Kind;
use bitnet_model::Target;

bitnet_fuzz_targets::open_target!(Kind::Gguf(Target::Tq2_0));
