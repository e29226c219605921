//! `bitnet bench`: its report, for machines and for people.

use bitnet::inference::names::ThroughputRecord;

use crate::bitnet::{bitnet, command, fixture};

#[test]
fn speeds_come_for_every_length_and_batch_asked_for() {
    let args =
        ["bench", "synthetic:tiny", "-p", "16,100", "-n", "8", "-b", "1,3", "--threads", "2", "--json"];
    let more = ["--kv", "f16", "-d", "300", "--device", "cpu", "--runs", "2", "--step", "32"];
    let report = bitnet(&[&args[..], &more].concat()).json();
    assert_eq!(report["step"], 32);
    assert_eq!((&report["kv"], &report["decode"][0]["depth"]), (&"f16".into(), &300.into()));
    assert_eq!(report["device"], "cpu");
    assert_eq!(report["threads"], 2);
    assert_eq!(report["model"], "synthetic:tiny");
    assert_eq!(report["batch_equals_single"], true);
    assert!(report["isa"].is_string());
    assert!(report["weight_layout"].as_str().unwrap().contains("head as int8"), "{report}");
    assert!(report["memory_bandwidth_gb_s"].as_f64().unwrap() > 0.1);
    let tokens: Vec<_> = report["prefill"].as_array().unwrap().iter().map(|p| p["tokens"].as_u64()).collect();
    assert_eq!(tokens, [Some(16), Some(100)]);
    let batches: Vec<_> = report["decode"].as_array().unwrap().iter().map(|d| d["batch"].as_u64()).collect();
    assert_eq!(batches, [Some(1), Some(3)]);
    let rows = [report["prefill"].as_array().unwrap().clone(), report["decode"].as_array().unwrap().clone()];
    let weights = report["weight_bytes"].as_f64().unwrap();
    for row in rows.concat() {
        let [least, median, most] = ["tok_s_min", "tok_s", "tok_s_max"].map(|key| row[key].as_f64().unwrap());
        assert!(0.0 < least && least <= median && median <= most, "{row}");
        assert_eq!(row["runs"], 2);
        let number = |key: &str| row[key].as_f64();
        let (made, expected) = match (number("first_token_ms"), number("gb_s")) {
            (Some(milliseconds), _) => (milliseconds * median, 1e3 * number("tokens").unwrap()),
            (_, gb_s) => (1e9 * gb_s.unwrap() * number("batch").unwrap() / median, weights),
        };
        assert!((made / expected - 1.0).abs() < 1e-6, "{row}");
    }
    // Two layers with keys and values of 128 f16 each. Prompts of several sequences differ in length, and on average half of
    // the 8 tokens are before one.
    for (row, before) in report["decode"].as_array().unwrap().iter().zip([304.0, 304.0 + 305.0 + 306.0]) {
        let number = |key: &str| row[key].as_f64().unwrap();
        let read = 1e9 * number("cache_gb_s") * number("batch") / number("tok_s");
        assert!((read / (2.0 * 2.0 * 128.0 * 2.0 * before) - 1.0).abs() < 1e-6, "{row}");
    }
    assert_eq!(report["speculation"], serde_json::json!([]));
    assert!(report["load_seconds"].as_f64().unwrap() > 0.0);
    #[cfg(target_os = "linux")]
    assert!(report["peak_memory_bytes"].as_u64() > report["weight_bytes"].as_u64(), "{report}");
    // All ternary matrices of two layers at 2 bits with a scale per row, the bf16 head and the norms.
    let layer = (256 + 2 * 128 + 256 + 3 * 768) * 256 / 4;
    // Trits and norms, and the int8 copy of the output head.
    assert!(report["weight_bytes"].as_u64().unwrap() > 2 * layer + 512 * 256);
    assert!(report["trits"].as_u64() >= Some(2 * 4 * (layer - 256 * 256 / 4)));
    assert!(report["integer_peak_tops"].as_f64().unwrap() > 0.0);
}

#[test]
fn decode_speeds_are_recorded_for_the_throughput_factor() {
    let cache = tempfile::tempdir().unwrap();
    let mut bench =
        command(&["bench", "synthetic:tiny", "-p", "8", "-n", "4", "-b", "1,2", "--threads", "1"]);
    let run = bench.env("BITNET_CACHE", cache.path()).output().unwrap();
    let told = String::from_utf8(run.stderr).unwrap();
    let path = told.lines().find_map(|l| l.strip_prefix("recorded in ")).unwrap();
    assert!(path.starts_with(cache.path().to_str().unwrap()), "{path}");
    let record = ThroughputRecord::read(path.as_ref()).unwrap().unwrap();
    assert_eq!((record.model.as_str(), record.threads), ("synthetic:tiny", 1));
    assert!(record.factor(2).unwrap() > 0.0);
    assert_eq!(record.factor(4), None);

    let mut larger = command(&["bench", "synthetic:tiny", "-p", "8", "-n", "4", "-b", "4", "--threads", "1"]);
    assert!(larger.env("BITNET_CACHE", cache.path()).output().unwrap().status.success());
    let after = ThroughputRecord::read(path.as_ref()).unwrap().unwrap();
    assert_eq!(after.decode[..2], record.decode, "sizes that were not measured stay");
    assert_eq!(after.decode.iter().map(|row| row.0).collect::<Vec<_>>(), [1, 2, 4]);
    assert!(after.factor(4).unwrap() > 0.0);

    let deeper = ["bench", "synthetic:tiny", "-p", "8", "-n", "4", "-b", "8", "-d", "40", "--threads", "1"];
    let run = command(&deeper).env("BITNET_CACHE", cache.path()).output().unwrap();
    assert!(run.status.success() && !String::from_utf8(run.stderr).unwrap().contains("recorded in"));
    assert_eq!(ThroughputRecord::read(path.as_ref()).unwrap().unwrap().decode, after.decode);
}

#[test]
fn drafts_are_counted_where_a_text_repeats_itself_and_where_it_does_not() {
    let args = ["bench", "synthetic:tiny", "-p", "8", "-n", "100", "-b", "1", "--speculate", "4", "--json"];
    let report = bitnet(&args).json();
    let rows = report["speculation"].as_array().unwrap();
    assert_eq!(
        rows.iter().map(|row| row["text"].as_str().unwrap()).collect::<Vec<_>>(),
        ["repeats itself", "varies"]
    );
    for row in rows {
        let (drafted, accepted) = (row["drafted"].as_u64().unwrap(), row["accepted"].as_u64().unwrap());
        assert!(drafted > 0 && accepted <= drafted && row["tok_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["plain"]["tok_s"].as_f64().unwrap() > 0.0, "{row}");
    }
    // How many drafts a step has depends on measured times, so the shares are compared.
    let share =
        |row: &serde_json::Value| row["accepted"].as_f64().unwrap() / row["drafted"].as_f64().unwrap();
    assert!(share(&rows[0]) > 0.0 && share(&rows[0]) >= share(&rows[1]), "{report}");
}

#[test]
fn numbers_of_threads_are_compared_and_everything_else_is_measured_with_the_last() {
    let args = ["bench", "synthetic:tiny", "-p", "8", "-n", "40", "-b", "2", "--device", "cpu", "--json"];
    let report = bitnet(&[&args[..], &["--threads", "3,1,2"]].concat()).json();
    assert_eq!(report["threads"], 2);
    let rows = report["scaling"].as_array().unwrap();
    let threads: Vec<_> = rows.iter().map(|row| row["threads"].as_u64().unwrap()).collect();
    assert_eq!(threads, [3, 1, 2]);
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap();
        assert_eq!(row["batch"], 1);
        let part = number("of_bandwidth") * number("bandwidth_gb_s") / number("gb_s");
        assert!((part - 1.0).abs() < 1e-6 && number("tok_s") > 0.0, "{row}");
        // No thread can compute for longer than the token took.
        #[cfg(target_os = "linux")]
        assert!((0.0..3.5 * 1e3 / number("tok_s_min")).contains(&number("cpu_ms")), "{row}");
    }
    let alone = bitnet(&[&args[..], &["--threads", "1"]].concat()).json();
    assert_eq!(alone["scaling"], serde_json::json!([]));
}

#[test]
fn a_json_schema_needs_a_small_part_of_the_output_head() {
    for model in ["demo", "synthetic:tiny"] {
        let args =
            ["bench", model, "-p", "8", "-n", "60", "-b", "1", "--sampling", "--device", "cpu", "--json"];
        let report = bitnet(&args).json();
        let rows = report["sampling"].as_array().unwrap();
        let json = |row: &&serde_json::Value| row["how"].as_str().unwrap().starts_with("JSON");
        assert_eq!(rows.iter().filter(json).count(), 2, "{report}");
        for row in rows.iter().filter(json) {
            let head = &row["head"];
            assert!(head["allowed"].as_u64().unwrap() > 0, "{model}: {row}");
            assert!((0.0..0.5).contains(&head["of_head"].as_f64().unwrap()), "{model}: {row}");
        }
    }
}

#[test]
fn drafts_of_a_known_quality_are_accepted_as_often_and_change_no_text() {
    let drafts = ["--draft-acceptance", "0,0.7,1", "--speculate", "3"];
    let args = ["bench", "synthetic:tiny", "-p", "8", "-n", "150", "-b", "1", "--json"];
    let report = bitnet(&[&args[..], &drafts].concat()).json();
    let tokens: Vec<_> = report["rows"].as_array().unwrap().iter().map(|r| r["tokens"].as_u64()).collect();
    assert_eq!(tokens, [Some(1), Some(2), Some(3), Some(4)]);
    let rows = report["known_drafts"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for (row, acceptance) in rows.iter().zip([0.0, 0.7, 1.0]) {
        let [drafted, accepted] = ["drafted", "accepted"].map(|key| row[key].as_u64().unwrap());
        assert_eq!(row["acceptance"].as_f64(), Some(acceptance));
        // Which drafts the engine tries depends on the times of steps.
        assert!(drafted > 0, "{row}");
        match acceptance {
            0.0 => assert_eq!(accepted, 0, "{row}"),
            1.0 => assert_eq!(accepted, drafted, "{row}"),
            _ => assert!(accepted <= drafted, "{row}"),
        }
    }
    let refused = bitnet(&["bench", "synthetic:tiny", "--draft-acceptance", "1.5"]);
    assert!(refused.code == 2 && refused.err.contains("from 0 to 1"), "{refused:?}");

    // A recurrent model drafts like any other.
    let hybrid = fixture("qwen35-ternary/model-PQ2_0.gguf");
    let args = ["bench", &hybrid, "-p", "8", "-n", "80", "-b", "1", "--draft-acceptance", "0.7", "--json"];
    let report = bitnet(&args).json();
    let rows = report["known_drafts"].as_array().unwrap();
    assert!(rows.len() == 1 && rows[0]["drafted"].as_u64() > Some(0), "{report}");
}

#[test]
fn people_get_the_same_as_a_table() {
    let out = bitnet(&["bench", "synthetic:tiny", "-p", "8", "-n", "4", "--isa", "scalar"]).success();
    let batches: Vec<&str> =
        out.lines().filter_map(|l| l.strip_prefix("decode")?.split_whitespace().nth(1)).collect();
    assert_eq!(batches, ["1", "2", "4", "8", "16", "32"]);
    for part in ["isa scalar", "prefill", "decode", "tok/s", "memory bandwidth", "peak", "loaded in", "equal"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
}
