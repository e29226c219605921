//! Completion scripts and the manual page.

use crate::bitnet::bitnet;

const COMMANDS: [&str; 19] = [
    "run",
    "chat",
    "logits",
    "tokenize",
    "detokenize",
    "inspect",
    "batch",
    "serve",
    "convert",
    "perplexity",
    "bench",
    "doctor",
    "pull",
    "list",
    "rm",
    "cache",
    "health",
    "completions",
    "man",
];

#[test]
fn completions_and_the_manual_page_know_every_command() {
    let help = bitnet(&["--help"]).success();
    let commands = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let listed: Vec<&str> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(listed, [&COMMANDS[..], &["help"]].concat());
    let page = bitnet(&["man"]).success();
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = bitnet(&["completions", shell]).success();
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    for command in COMMANDS {
        assert!(page.contains(&format!("COMMAND {}", command.to_uppercase())), "{command}");
    }
    assert!(page.starts_with(".ie") || page.starts_with(".TH"), "{}", &page[..80]);
}
