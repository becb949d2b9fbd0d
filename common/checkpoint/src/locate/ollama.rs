//! Models that Ollama keeps.
//!
//! A model is a manifest, `manifests/HOST/NAMESPACE/MODEL/TAG`: JSON with a list of layers, one of which is the weights, a
//! GGUF file `blobs/sha256-HEX` that has no ending. Its other layers (its own template, parameters, a licence) are for
//! Ollama; the file has a template of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::kept_error::{ADAPTER, KeptError, MAX_MANIFEST_BYTES, MODEL, OllamaError};
use super::names::{is_plain, names_in};
use super::program::Program;
use crate::file::read_bounded;

pub(super) const OLLAMA: Program =
    Program { scheme: "ollama", called: "Ollama", folders, find, names };

/// What a name is short for that says neither host nor namespace nor tag.
const HOST: &str = "registry.ollama.ai";
const NAMESPACE: &str = "library";
const TAG: &str = "latest";

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    #[serde(rename = "mediaType", default)]
    kind: String,
    #[serde(default)]
    digest: String,
    size: Option<u64>,
}

/// Where Ollama keeps models: where its variable says, and nowhere else; if it says nothing, in its user's folder, and in that
/// of the service on Linux.
fn folders() -> Vec<PathBuf> {
    folders_of(std::env::var_os("OLLAMA_MODELS"), std::env::home_dir())
}

fn folders_of(said: Option<OsString>, home: Option<PathBuf>) -> Vec<PathBuf> {
    if let Some(said) = said.filter(|said| !said.is_empty()) {
        return vec![said.into()];
    }
    let home = home.map(|home| home.join(".ollama/models"));
    let service = cfg!(unix).then(|| PathBuf::from("/usr/share/ollama/.ollama/models"));
    home.into_iter().chain(service).collect()
}

/// The model `[[HOST/]NAMESPACE/]MODEL[:TAG]` in one of its folders.
fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>, KeptError> {
    let manifest = parts(name).map(|parts| folder.join("manifests").join(parts.join("/")));
    let Some(manifest) = manifest.filter(|manifest| manifest.is_file()) else { return Ok(None) };
    blob(folder, &manifest).map(Some)
}

/// Host, namespace, model and tag of a name; `None` if it cannot be one.
fn parts(name: &str) -> Option<[&str; 4]> {
    let slashes: Vec<&str> = name.split('/').collect();
    let (host, namespace, last) = match slashes[..] {
        [last] => (HOST, NAMESPACE, last),
        [namespace, last] => (HOST, namespace, last),
        [host, namespace, last] => (host, namespace, last),
        _ => return None,
    };
    let (model, tag) = last.split_once(':').unwrap_or((last, TAG));
    let parts = [host, namespace, model, tag];
    // A host may have a port, by a colon that no other part has.
    let plain = |(index, part): (usize, &&str)| {
        is_plain(part)
            || (index == 0 && part.split(':').count() == 2 && part.split(':').all(is_plain))
    };
    parts.iter().enumerate().all(plain).then_some(parts)
}

/// The only GGUF file of a manifest.
fn blob(folder: &Path, manifest: &Path) -> Result<PathBuf, KeptError> {
    let wrong = |cause| KeptError::Manifest { path: manifest.to_owned(), cause };
    let unreadable = |cause| KeptError::Unreadable { path: manifest.to_owned(), cause };
    let bytes = read_bounded(manifest, MAX_MANIFEST_BYTES)
        .map_err(unreadable)?
        .map_err(|bytes| wrong(OllamaError::TooLong { bytes }))?;
    let Manifest { layers } = serde_json::from_slice(&bytes)
        .map_err(|cause| wrong(OllamaError::Json { line: cause.line(), column: cause.column() }))?;
    if layers.iter().any(|layer| layer.kind == ADAPTER) {
        return Err(wrong(OllamaError::Adapter));
    }
    let models: Vec<&Layer> = layers.iter().filter(|layer| layer.kind == MODEL).collect();
    let [Layer { digest, size, .. }] = models[..] else {
        return Err(wrong(OllamaError::Models { found: models.len() }));
    };
    let Some(hex) = digest.strip_prefix("sha256:").filter(|hex| is_sha256(hex)) else {
        let digest = digest.chars().take(80).collect();
        return Err(wrong(OllamaError::Digest { digest }));
    };
    let blob = folder.join("blobs").join(format!("sha256-{hex}"));
    let Ok(metadata) = blob.metadata() else { return Err(wrong(OllamaError::NoBlob { blob })) };
    match *size {
        Some(expected) if expected != metadata.len() => {
            let found = metadata.len();
            Err(wrong(OllamaError::BlobBytes { blob, expected, found }))
        }
        _ => Ok(blob),
    }
}

fn is_sha256(hex: &str) -> bool {
    hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The names of all models of a folder, as short as they may be said.
fn names(folder: &Path) -> Vec<String> {
    let manifests = folder.join("manifests");
    let mut names = Vec::new();
    for host in names_in(&manifests) {
        for namespace in names_in(&manifests.join(&host)) {
            let models = manifests.join(&host).join(&namespace);
            for model in names_in(&models) {
                let tags = names_in(&models.join(&model));
                names.extend(tags.iter().map(|tag| short(&host, &namespace, &model, tag)));
            }
        }
    }
    names
}

fn short(host: &str, namespace: &str, model: &str, tag: &str) -> String {
    let owner = match (host, namespace) {
        (HOST, NAMESPACE) => String::new(),
        (HOST, namespace) => format!("{namespace}/"),
        (host, namespace) => format!("{host}/{namespace}/"),
    };
    let tag = if tag == TAG { String::new() } else { format!(":{tag}") };
    format!("{owner}{model}{tag}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};
    use tempfile::TempDir;

    use super::*;
    use crate::locate::{LocateError, Location, kept_in};
    use crate::testing::golden_gguf_path;

    const FILE: &str = "llama-q4_0";

    /// A folder as Ollama has it, with one model under that manifest.
    fn folder(manifest: &str, layers: &Value) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        add(folder.path(), manifest, &json!({ "schemaVersion": 2, "layers": layers }).to_string());
        let blobs = folder.path().join("blobs");
        fs::create_dir_all(&blobs).unwrap();
        let model = golden_gguf_path(FILE).join("model.gguf");
        fs::copy(model, blobs.join(format!("sha256-{}", hex()))).unwrap();
        folder
    }

    fn add(folder: &Path, manifest: &str, text: &str) {
        let path = folder.join("manifests").join(manifest);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn hex() -> String {
        "0123456789abcdef".repeat(4)
    }

    fn layer(kind: &str, digest: &str) -> Value {
        json!({ "mediaType": format!("application/vnd.ollama.image.{kind}"), "digest": digest })
    }

    fn model() -> Value {
        layer("model", &format!("sha256:{}", hex()))
    }

    fn locate(folder: &Path, name: &str) -> Result<Location, LocateError> {
        kept_in(&OLLAMA, name, &[folder.join("no-such-folder"), folder.to_owned()])
    }

    fn refusal(folder: &TempDir, name: &str) -> String {
        locate(folder.path(), name).unwrap_err().to_string()
    }

    #[test]
    fn its_variable_says_where_alone_is_looked() {
        let home = || Some(PathBuf::from("/home/x"));
        assert_eq!(folders_of(Some("/data".into()), home()), [PathBuf::from("/data")]);
        for said in [None, Some(OsString::new())] {
            let found = folders_of(said, home());
            assert_eq!(found[0], PathBuf::from("/home/x/.ollama/models"));
            assert_eq!(found.len(), if cfg!(unix) { 2 } else { 1 });
        }
    }

    #[test]
    fn names_are_short_for_hosts_namespaces_and_tags() {
        let license = layer("license", "sha256:00");
        for (manifest, names) in [
            (
                "registry.ollama.ai/library/tiny/latest",
                &["tiny", "tiny:latest", "library/tiny"][..],
            ),
            ("registry.ollama.ai/library/tiny/1b-q4", &["tiny:1b-q4"]),
            ("registry.ollama.ai/someone/tiny/latest", &["someone/tiny"]),
            ("hf.co/org/Tiny-GGUF/Q4_0", &["hf.co/org/Tiny-GGUF:Q4_0"]),
            ("localhost:5000/a/b/c", &["localhost:5000/a/b:c"]),
        ] {
            let folder = folder(manifest, &json!([license, model()]));
            for name in names {
                let location = locate(folder.path(), name).unwrap();
                assert_eq!(location.name, *name);
                let checkpoint = crate::Checkpoint::open_at(location).unwrap();
                let same =
                    crate::Checkpoint::open(golden_gguf_path(FILE).to_str().unwrap()).unwrap();
                assert_eq!(checkpoint.tensors.len(), same.tensors.len(), "{name}");
            }
        }
    }

    #[test]
    fn what_is_not_there_is_refused_with_where_was_looked_and_what_is_there() {
        let folder = folder("registry.ollama.ai/library/tiny/latest", &json!([model()]));
        add(folder.path(), "hf.co/org/other/Q4", "{}");
        let path = folder.path().display().to_string();
        for name in
            ["tiny:2b", "", "a/b/c/d", "../tiny", "tiny:../latest", "..", "/etc/passwd", "a:b:c"]
        {
            let error = refusal(&folder, name);
            assert!(error.contains(&format!("Ollama keeps no model {name:?}")), "{error}");
            assert!(error.contains(&path) && error.contains("no-such-folder"), "{error}");
            assert!(error.ends_with("ollama:hf.co/org/other:Q4, ollama:tiny"), "{error}");
        }
        let error = kept_in(&OLLAMA, "x", &[folder.path().join("none")]).unwrap_err().to_string();
        assert!(error.ends_with("there is none"), "{error}");
    }

    #[test]
    fn of_many_models_a_refusal_lists_some() {
        let folder = tempfile::tempdir().unwrap();
        for index in 0..50 {
            add(folder.path(), &format!("registry.ollama.ai/library/m{index:02}/latest"), "{}");
        }
        let error = refusal(&folder, "x");
        assert!(error.contains("ollama:m39") && !error.contains("ollama:m40"), "{error}");
        assert!(error.ends_with("and 10 more"), "{error}");
    }

    #[test]
    fn manifests_that_name_no_file_of_theirs_are_refused() {
        let sized = |bytes: u64| {
            let mut model = model();
            model["size"] = bytes.into();
            model
        };
        let digest = |digest: &str| json!([layer("model", digest)]);
        let bytes = golden_gguf_path(FILE).join("model.gguf").metadata().unwrap().len();
        let long = format!("sha256:{}", "g".repeat(64));
        for (layers, says) in [
            (json!([]), "lists 0 GGUF files"),
            (json!([model(), model()]), "lists 2 GGUF files"),
            (json!([layer("tensor", "sha256:00")]), "lists 0 GGUF files"),
            (json!([model(), layer("adapter", "sha256:00")]), "adapter"),
            (digest("sha256:../../x"), "found \"sha256:../../x\""),
            (digest("md5:00"), "64 hexadecimal digits"),
            (digest(&long), "64 hexadecimal digits"),
            (digest(&format!("sha256:{}", "f".repeat(64))), "is missing"),
            (json!([sized(bytes + 1)]), "expected"),
            (json!({}), "not the JSON"),
            (json!([{ "mediaType": 7 }]), "not the JSON"),
        ] {
            let folder = folder("registry.ollama.ai/library/tiny/latest", &layers);
            let error = refusal(&folder, "tiny");
            assert!(
                error.contains("library/tiny/latest") && error.contains(says),
                "{says}: {error}"
            );
        }
        let whole = folder("registry.ollama.ai/library/tiny/latest", &json!([sized(bytes)]));
        locate(whole.path(), "tiny").unwrap();
    }

    #[test]
    fn long_manifests_and_weights_of_other_kinds_are_refused() {
        let folder = folder("registry.ollama.ai/library/tiny/latest", &json!([model()]));
        let blob = folder.path().join("blobs").join(format!("sha256-{}", hex()));
        fs::write(blob, "no magic").unwrap();
        assert!(refusal(&folder, "tiny").contains("is not a checkpoint"));
        let manifest = folder.path().join("manifests/registry.ollama.ai/library/tiny/latest");
        fs::File::create(manifest).unwrap().set_len(MAX_MANIFEST_BYTES + 1).unwrap();
        assert!(refusal(&folder, "tiny").contains("more than"));
    }
}
