//! Fetching: what a model needs, file by file, over broken connections, into the cache.

use std::{
    env,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use hf_hub::Cache;
use serde_json::Value;

use crate::{
    HubError, ModelId,
    cache::Folder,
    http::{Answer, Client},
    id::{is_plain, is_relative, part, parts},
};

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";
/// Files of a model that are fetched if it has them, in addition to the configuration and the weights.
const OPTIONAL: [&str; 7] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "1_Pooling/config.json",
    // Only to report that it must be converted.
    "tokenizer.model",
];
/// Maximum size of the description of a repository, in bytes.
const MAX_JSON: u64 = 16 << 20;
/// Maximum number of consecutive retries without progress.
const RETRIES: u32 = 4;

/// Settings of the hub and the cache.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address of the hub.
    pub endpoint: String,
    /// The user's token, sent only to the hub.
    pub token: Option<String>,
    /// Whether to use only the cache.
    pub offline: bool,
    /// Folder of the cache.
    pub cache: PathBuf,
    /// Time to wait before resuming a broken transfer, multiplied by the number of attempts.
    pub patience: Duration,
}

impl Settings {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN` (or the token stored by `hf auth login`), `HF_HUB_OFFLINE`, `HF_HUB_CACHE` (the
    /// folder of the cache) and `HF_HOME` (its parent folder).
    ///
    /// # Errors
    /// If there is no home folder for a cache.
    pub fn from_env() -> Result<Settings, HubError> {
        Self::from_variables(|name| env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, HubError> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let hub_cache = variable("HF_HUB_CACHE").map(PathBuf::from);
        let user_home = || env::home_dir().filter(|home| !home.as_os_str().is_empty());
        let home = variable("HF_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(user_home()?.join(".cache/huggingface")));
        let token = home.as_ref().and_then(|home| Cache::new(home.join("hub")).token());
        let cache = hub_cache.or_else(|| Some(home?.join("hub"))).ok_or(HubError::NoHome)?;
        let offline = variable("HF_HUB_OFFLINE").map(|v| v.trim().to_ascii_lowercase());
        Ok(Settings {
            endpoint: variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            token: variable("HF_TOKEN").map(|token| token.trim().into()).or(token),
            offline: offline.is_some_and(|v| matches!(v.as_str(), "1" | "true" | "yes" | "on")),
            cache,
            patience: Duration::from_secs(1),
        })
    }
}

/// Where a fetched model is on this machine.
#[derive(Debug)]
#[non_exhaustive]
pub struct Fetched {
    /// The requested file, or the folder of the model.
    pub path: PathBuf,
    /// Why the hub could not be asked for a newer version; `None` if it was.
    pub unreachable: Option<HubError>,
}

/// A Hugging Face hub and its cache on this machine.
#[derive(Debug, Clone)]
pub struct Hub {
    settings: Settings,
    client: Client,
}

impl Hub {
    /// Makes a hub; sends nothing yet.
    pub fn new(settings: Settings) -> Hub {
        let client = Client::new(&settings.endpoint, settings.token.clone());
        Hub { settings, client }
    }

    /// Fetches the file that `id` names with all its parts, or the files of the model that are needed. `progress` gets the file, the bytes
    /// fetched and the total bytes. If the hub does not answer, a model in the cache is used, and the result reports
    /// it.
    ///
    /// # Errors
    /// If the hub does not have the model or denies access, or if it does not answer and the cache is not complete.
    /// Everything fetched so far is kept.
    pub fn fetch(&self, id: &ModelId, progress: &mut dyn FnMut(&str, u64, u64)) -> Result<Fetched, HubError> {
        let folder = Folder::of(&self.settings.cache, id);
        if self.settings.offline {
            return Ok(Fetched { path: cached(id, &folder)?, unreachable: None });
        }
        match self.fetch_online(id, &folder, progress) {
            Ok(path) => Ok(Fetched { path, unreachable: None }),
            Err(error) if error.is_unreachable() => match cached(id, &folder) {
                Ok(path) => Ok(Fetched { path, unreachable: Some(error) }),
                Err(_) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    fn fetch_online(
        &self,
        id: &ModelId,
        folder: &Folder,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<PathBuf, HubError> {
        let (commit, files) = self.describe(id)?;
        let mut get = |file: &str| self.file(id, folder, &commit, file, progress);
        let path = if let Some(file) = &id.file {
            let parts = parts(file);
            if let Some(missing) = parts.iter().find(|part| !files.contains(part)) {
                return Err(no_file(id, missing, &files));
            }
            for part in &parts {
                get(part)?;
            }
            folder.snapshot(&commit).join(file)
        } else {
            if !files.iter().any(|f| f == CONFIG) {
                return Err(no_file(id, CONFIG, &files));
            }
            get(CONFIG)?;
            for file in OPTIONAL.iter().filter(|name| files.iter().any(|f| f == *name)) {
                get(file)?;
            }
            if files.iter().any(|f| f == INDEX) {
                for shard in shards(&get(INDEX)?)? {
                    get(&shard)?;
                }
            } else if files.iter().any(|f| f == WEIGHTS) {
                get(WEIGHTS)?;
            } else {
                return Err(no_file(id, WEIGHTS, &files));
            }
            folder.snapshot(&commit)
        };
        folder.remember(&commit)?;
        Ok(path)
    }

    /// Returns the commit that a revision points to, and its files.
    fn describe(&self, id: &ModelId) -> Result<(String, Vec<String>), HubError> {
        let revision = id.revision.replace('/', "%2F");
        let answer = self.client.get(&format!("api/models/{}/revision/{revision}", id.repo), 0)?;
        let mut answer = self.successful(id, answer, None)?;
        let wrong = |problem: &str| HubError::Answer { url: answer.url.clone(), problem: problem.into() };
        let mut text = Vec::new();
        let body = answer.last.body_mut().as_reader().take(MAX_JSON).read_to_end(&mut text);
        body.map_err(|e| HubError::Network { url: answer.url.clone(), problem: e.to_string() })?;
        let json: Value = serde_json::from_slice(&text).map_err(|e| wrong(&e.to_string()))?;
        let commit =
            json["sha"].as_str().filter(|sha| is_plain(sha)).ok_or_else(|| wrong("it names no commit"))?;
        let files = json["siblings"].as_array().ok_or_else(|| wrong("it lists no files"))?;
        let names = files.iter().filter_map(|f| f["rfilename"].as_str());
        // Drops names that would lead out of the folder.
        let names = names.filter(|name| is_relative(name)).map(str::to_owned).collect();
        Ok((commit.into(), names))
    }

    /// Fetches a file into the cache, unless it is already there.
    fn file(
        &self,
        id: &ModelId,
        folder: &Folder,
        commit: &str,
        file: &str,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<PathBuf, HubError> {
        let path = folder.snapshot(commit).join(file);
        if path.is_file() {
            return Ok(path);
        }
        let place = format!("{}/resolve/{commit}/{file}", id.repo);
        let mut answer = self.successful(id, self.client.get(&place, 0)?, Some(file))?;
        let content = content(&answer)?;
        if folder.has(&content) {
            return folder.link(commit, file, &content);
        }
        let mut unfinished = folder.unfinished(&content)?;
        let size = length(&answer);
        // A server without ranges sends the whole file again; `begins_at` detects that.
        if unfinished.length > 0 && size.is_some_and(|size| unfinished.length < size) {
            answer = self.successful(id, self.client.get(&place, unfinished.length)?, Some(file))?;
        }
        let mut attempts = 0;
        while unfinished.length == 0 || size != Some(unfinished.length) {
            let before = unfinished.length;
            if begins_at(&answer) != before {
                unfinished.restart()?;
            }
            let mut report = |have| progress(file, have, size.unwrap_or(have));
            let problem = match receive(&mut answer, &mut unfinished, size.unwrap_or(u64::MAX), &mut report) {
                Ok(()) if size.is_none_or(|size| unfinished.length == size) => break,
                Ok(()) => "it ended early".to_string(),
                Err(Failure::Cache(e)) => return Err(e),
                Err(Failure::Transfer(problem)) => problem,
            };
            attempts = if unfinished.length > before { 0 } else { attempts + 1 };
            let have = unfinished.length;
            let broken =
                |problem| HubError::Broken { file: file.into(), have, size: size.unwrap_or(have), problem };
            if attempts == RETRIES {
                return Err(broken(problem));
            }
            std::thread::sleep(self.settings.patience * (attempts + 1));
            answer = match self.client.get(&place, have) {
                Ok(answer) => self.successful(id, answer, Some(file))?,
                Err(e) => return Err(broken(e.to_string())),
            };
        }
        unfinished.finish(file)?;
        folder.link(commit, file, &content)
    }

    /// Turns error statuses into errors.
    fn successful(&self, id: &ModelId, answer: Answer, file: Option<&str>) -> Result<Answer, HubError> {
        let (url, repo) = (answer.url.clone(), id.repo.clone());
        let again = "wait a while and try again";
        Err(match answer.last.status().as_u16() {
            200 | 206 => return Ok(answer),
            401 | 403 => HubError::Denied { repo, endpoint: self.client.endpoint().into() },
            404 => match file {
                Some(file) => no_file(id, file, &[]),
                None => HubError::NoModel { repo, revision: id.revision.clone() },
            },
            status @ 429 => {
                HubError::Status { url, status, cure: "too many requests; wait, or set HF_TOKEN" }
            }
            status @ 500.. => HubError::Status { url, status, cure: again },
            status => HubError::Status { url, status, cure: "check HF_ENDPOINT and the name of the model" },
        })
    }
}

/// Returns the name of the blob in the cache, which is the hub's `ETag`.
fn content(answer: &Answer) -> Result<String, HubError> {
    let headers = answer.first.headers();
    let name = headers.get("x-linked-etag").or_else(|| headers.get("etag")).and_then(|v| v.to_str().ok());
    let name = name.map(|name| name.trim_start_matches("W/").trim_matches('"').to_owned());
    name.filter(|name| is_plain(name) && name.len() <= 128).ok_or_else(|| HubError::Answer {
        url: answer.url.clone(),
        problem: "it has no ETag that could name the content".into(),
    })
}

/// Size of the file in bytes, from an answer that begins with the first; small files may come without a length.
fn length(answer: &Answer) -> Option<u64> {
    answer.last.headers().get("content-length")?.to_str().ok()?.parse().ok()
}

/// Returns the offset in the file at which an answer begins.
fn begins_at(answer: &Answer) -> u64 {
    let range = answer.last.headers().get("content-range").and_then(|v| v.to_str().ok());
    let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
    if answer.last.status().as_u16() == 206 { start.unwrap_or(0) } else { 0 }
}

enum Failure {
    Transfer(String),
    Cache(HubError),
}

/// Appends the body, up to `size` bytes in total.
fn receive(
    answer: &mut Answer,
    to: &mut crate::cache::Unfinished,
    size: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Failure> {
    let mut reader = answer.last.body_mut().with_config().limit(u64::MAX).reader();
    let mut buffer = vec![0; 1 << 16];
    while to.length < size {
        let room = buffer.len().min(usize::try_from(size - to.length).unwrap_or(usize::MAX));
        match reader.read(&mut buffer[..room]) {
            Ok(0) => break,
            Ok(n) => to.append(&buffer[..n]).map_err(Failure::Cache)?,
            Err(e) => return Err(Failure::Transfer(e.to_string())),
        }
        progress(to.length);
    }
    Ok(())
}

/// Returns the model from the cache, if it is complete.
fn cached(id: &ModelId, folder: &Folder) -> Result<PathBuf, HubError> {
    let missing = |file: &str| HubError::Offline {
        repo: id.repo.clone(),
        revision: id.revision.clone(),
        file: file.into(),
    };
    let commit = folder.commit().ok_or_else(|| missing("the model"))?;
    let snapshot = folder.snapshot(&commit);
    let have =
        |file: &str| if snapshot.join(file).is_file() { Ok(snapshot.join(file)) } else { Err(missing(file)) };
    if let Some(file) = &id.file {
        parts(file).iter().try_for_each(|part| have(part).map(drop))?;
        return have(file);
    }
    have(CONFIG)?;
    match have(INDEX) {
        Ok(index) => shards(&index)?.iter().try_for_each(|shard| have(shard).map(drop))?,
        Err(_) => drop(have(WEIGHTS)?),
    }
    Ok(snapshot)
}

/// Returns the files that an index names, without duplicates.
fn shards(index: &Path) -> Result<Vec<String>, HubError> {
    let damaged = |problem: &str| HubError::Damaged { file: INDEX.into(), problem: problem.into() };
    let text = std::fs::read(index).map_err(HubError::cache("read", index))?;
    let json: Value = serde_json::from_slice(&text).map_err(|e| damaged(&e.to_string()))?;
    let map = json["weight_map"].as_object().ok_or_else(|| damaged("it has no weight_map"))?;
    let mut names = Vec::new();
    for name in map.values() {
        let name = name
            .as_str()
            .filter(|name| is_plain(name))
            .ok_or_else(|| damaged("a shard has no plain name"))?;
        names.push(name.to_owned());
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Makes the error for a missing file, with the files to request instead.
fn no_file(id: &ModelId, file: &str, files: &[String]) -> HubError {
    const SHOWN: usize = 6;
    // The first part of a file stands for all.
    let whole =
        |file: &&String| file.ends_with(".gguf") && part(file).is_none_or(|(_, number, _)| number == 1);
    let mut ggufs: Vec<_> = files.iter().filter(whole).map(|f| format!("{}:{f}", id.repo)).collect();
    let more = ggufs.len().saturating_sub(SHOWN);
    ggufs.truncate(SHOWN);
    let cure = match (ggufs.is_empty(), more) {
        (true, _) => "check the name; a model is config.json with safetensors, or a .gguf file".into(),
        (false, 0) => format!("give one of {}", ggufs.join(", ")),
        (false, _) => format!("give one of {}, and {more} more", ggufs.join(", ")),
    };
    HubError::NoFile { repo: id.repo.clone(), file: file.into(), cure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_lies_where_the_variables_of_hugging_faces_tools_say() {
        let cache = |variables: &[(&str, &str)]| {
            let find = |name: &str| Some(variables.iter().find(|(n, _)| *n == name)?.1.to_owned());
            Settings::from_variables(find).unwrap().cache
        };
        let (home, hub) = (("HF_HOME", "/a"), ("HF_HUB_CACHE", "/b/c"));
        assert_eq!(cache(&[home]), Path::new("/a/hub"));
        assert_eq!(cache(&[hub]), Path::new("/b/c"));
        assert_eq!(cache(&[home, hub]), Path::new("/b/c"), "the more specific one wins");
        assert_eq!(cache(&[home, ("HF_HUB_CACHE", " ")]), Path::new("/a/hub"));
    }
}
