//! Stamps the module with its profile and a hash of the Rust sources, so that a stale build shows.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let mut files = Vec::new();
    for root in ["..", "../../proto"] {
        println!("cargo:rerun-if-changed={root}");
        collect(Path::new(root), &mut files)?;
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        fs::read(file)?.hash(&mut hasher);
    }
    println!(
        "cargo:rustc-env=FLOWERBED_SOURCE_HASH={:016x}",
        hasher.finish()
    );
    #[allow(
        clippy::disallowed_methods,
        reason = "cargo tells a build script by environment"
    )]
    let profile = env::var("PROFILE").unwrap_or_default();
    println!("cargo:rustc-env=FLOWERBED_PROFILE={profile}");
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let extension = path
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default();
        if path.is_dir() {
            collect(&path, files)?;
        } else if matches!(extension, "rs" | "proto" | "toml") {
            files.push(path);
        }
    }
    Ok(())
}
