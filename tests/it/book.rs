//! Runs every command of the user guide in `docs/book`, except those that need what a test machine lacks.

use std::{
    fs,
    io::{BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use bitnet_tests::{binary, served_at};

/// What begins a command that is not run here: it downloads, installs, or needs a GPU or a container engine.
const ELSEWHERE: [&str; 6] = ["cargo install", "docker", "pip", "maturin", "bitnet", "sh install.sh"];

/// How the port of the guide's server is written.
const ADDRESS: &str = "localhost:8080";

fn book() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/book/src")
}

fn pages() -> Vec<(String, String)> {
    let entries = fs::read_dir(book()).expect("the guide");
    let mut pages: Vec<(String, String)> = entries
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).expect("a page"))
        })
        .collect();
    pages.sort();
    pages
}

/// The blocks of code of a page: their languages and texts.
fn blocks(page: &str) -> Vec<(&str, String)> {
    let (mut blocks, mut open): (Vec<(&str, String)>, bool) = (Vec::new(), false);
    for line in page.lines() {
        match (line.strip_prefix("```"), open) {
            (Some(language), false) => {
                blocks.push((language, String::new()));
                open = true;
            }
            (Some(_), true) => open = false,
            (None, true) => {
                let (_, text) = blocks.last_mut().expect("an open block");
                *text += line;
                text.push('\n');
            }
            (None, false) => {}
        }
    }
    assert!(!open, "a block of code has no end");
    blocks
}

/// A shell in a folder of the page, in which `bitnet` is the program under test.
fn shell(folder: &Path, script: &str) -> Command {
    let program = binary();
    let programs = program.parent().expect("a folder").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut sh = Command::new("sh");
    sh.args(["-euc", script]).current_dir(folder).env("PATH", format!("{programs}:{path}"));
    for variable in ["HOME", "HF_HOME", "BITNET_CACHE"] {
        sh.env(variable, folder.join("home"));
    }
    sh.env("HF_HUB_OFFLINE", "1");
    sh
}

/// `bitnet serve` of a page, on a free port.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(folder: &Path, command: &str) -> Self {
        let command = format!("exec {} --port 0", command.trim_end());
        let mut process = shell(folder, &command).stderr(Stdio::piped()).spawn().expect("sh");
        let mut log = BufReader::new(process.stderr.take().expect("a pipe"));
        let address = served_at(&mut log).unwrap_or_else(|said| panic!("{command}: {said}"));
        // A pipe that nobody reads would fill.
        thread::spawn(move || log.read_to_end(&mut Vec::new()));
        Server { process, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the blocks of a page, one after the other, adds what failed, and returns how many commands ran.
fn run(name: &str, page: &str, failed: &mut Vec<String>) -> usize {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("home")).expect("a home");
    let (mut server, mut ran) = (None::<Server>, 0);
    for (language, text) in blocks(page) {
        match language {
            "sh" => {
                let here = server.as_ref().map_or(ADDRESS, |server| &server.address);
                let out = shell(folder.path(), &text.replace(ADDRESS, here)).output().expect("sh");
                if !out.status.success() {
                    let [told, error] =
                        [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
                    failed.push(format!("{name}: {text}{told}\n{error}"));
                }
            }
            "sh,server" => server = Some(Server::start(folder.path(), &text)),
            _ => continue,
        }
        ran += text.lines().filter(|line| !line.starts_with(' ')).count();
    }
    ran
}

#[test]
fn every_command_of_the_guide_runs() {
    let mut failed = Vec::new();
    let ran: usize = pages().iter().map(|(name, page)| run(name, page, &mut failed)).sum();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(ran > 30, "only {ran} commands were found");
}

#[test]
fn commands_of_the_guide_that_run_elsewhere_have_flags_that_exist() {
    for (name, page) in pages() {
        for (language, text) in blocks(&page) {
            let known = ["sh", "sh,server", "sh,elsewhere", "rust", "python", "toml"].contains(&language);
            assert!(known, "{name}: a block of {language:?} is neither run nor checked");
            for line in text.lines().filter(|_| language == "sh,elsewhere") {
                let begin = ELSEWHERE.iter().find(|&&begin| line.starts_with(begin));
                let begin = begin.unwrap_or_else(|| panic!("{name}: {line} does not run, but could"));
                if *begin == "bitnet" {
                    let out = shell(&book(), &format!("{line} --help")).output().expect("sh");
                    assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
                }
            }
        }
    }
}

#[test]
fn programs_of_the_guide_are_files_that_other_tests_run() {
    for (name, page) in pages() {
        for (language, text) in blocks(&page).into_iter().filter(|(l, _)| ["rust", "python"].contains(l)) {
            let path = text.trim().strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}"));
            let path = path.unwrap_or_else(|| panic!("{name}: {language} that no test runs: {text}"));
            let (place, file) = (book().join(path), Path::new(path).file_stem().expect("a name"));
            assert!(place.is_file(), "{name}: {path}");
            let tests = if language == "rust" {
                "../examples/tests/run.rs"
            } else {
                "../crates/bitnet-py/tests/test_guide.py"
            };
            let tests = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(tests)).expect(tests);
            assert!(tests.contains(&*file.to_string_lossy()), "{path} is not run");
        }
    }
}

#[test]
fn every_page_of_the_guide_is_in_its_summary() {
    let pages = pages();
    let summary = &pages.iter().find(|(name, _)| name == "SUMMARY").expect("a summary").1;
    for (name, page) in pages.iter().filter(|(name, _)| name != "SUMMARY") {
        assert!(summary.contains(&format!("]({name}.md)")), "{name}");
        assert!(page.lines().count() < 120, "{name}: a page of the guide is short");
    }
}

/// A built guide holds its pages alone: of a file beside them, it has the path in the repository instead of a link.
#[test]
fn every_link_of_the_guide_leads_to_a_page_of_it_and_every_path_to_a_file() {
    let repository = book().join("../../..");
    let mut paths = 0;
    for (name, page) in pages() {
        for link in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().expect("a first part");
            assert!(
                !file.contains('/') && book().join(file).is_file(),
                "{name}: {link} is no page of the guide"
            );
        }
        for path in page.split('`').skip(1).step_by(2) {
            if ["docs/", "record/", "CONTRIBUTING"].iter().any(|begin| path.starts_with(begin)) {
                assert!(repository.join(path).exists(), "{name}: {path} does not exist");
                paths += 1;
            }
        }
    }
    assert!(paths > 5, "only {paths} paths were found");
}

/// The errors that the page about troubles explains are those that the product has.
#[test]
fn every_error_that_the_guide_explains_exists() {
    let mut sources = String::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|end| end == "rs")
                && entry.iter().any(|part| part == "src")
            {
                sources += &fs::read_to_string(entry).expect("a source");
            }
        }
    }
    let page = fs::read_to_string(book().join("troubleshooting.md")).expect("the page");
    let errors: Vec<&str> = page.split("**").skip(1).step_by(2).collect();
    assert!(errors.len() > 10, "{errors:?}");
    for error in errors {
        assert!(sources.contains(error), "no error says {error:?}");
    }
}
