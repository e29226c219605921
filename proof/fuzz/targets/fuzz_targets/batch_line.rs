#![no_main]

use std::{fs, sync::LazyLock};

use bitnet_fuzz_targets::TestServer;
use libfuzzer_sys::fuzz_target;

static ASKED: LazyLock<TestServer> = LazyLock::new(TestServer::new);

fuzz_target!(|bytes: &[u8]| {
    // Every line that is not blank gets one line, whatever it holds; only text that is no text ends the run.
    let folder = std::env::temp_dir().join(format!("bitnet-fuzz-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (input, output) = (folder.join("in.jsonl"), folder.join("out.jsonl"));
    fs::write(&input, bytes).expect("a file");
    let _ = fs::remove_file(&output);
    let _either = ASKED.batch(&input, &output);
    fs::remove_dir_all(&folder).expect("a folder that is ours");
});
