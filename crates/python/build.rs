//! Stamps the module with its profile and a hash of the Rust sources, so that a stale build shows.
//!
//! The hash is CRC-32 over each file's path from the repository's root and its contents, in the order
//! of the paths; `flowerbed doctor` computes the same.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let mut files = Vec::new();
    for (root, name) in [("..", "crates"), ("../../proto", "proto")] {
        println!("cargo:rerun-if-changed={root}");
        collect(Path::new(root), name, &mut files)?;
    }
    files.sort();
    let mut hash = 0;
    for (name, file) in files {
        hash = crc32(hash, name.as_bytes());
        hash = crc32(hash, &fs::read(file)?);
    }
    println!("cargo:rustc-env=FLOWERBED_SOURCE_HASH={hash:08x}");
    #[allow(
        clippy::disallowed_methods,
        reason = "cargo tells a build script by environment"
    )]
    let profile = env::var("PROFILE").unwrap_or_default();
    println!("cargo:rustc-env=FLOWERBED_PROFILE={profile}");
    Ok(())
}

/// Adds the name from the repository's root, with slashes, and the place of each source.
fn collect(folder: &Path, name: &str, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let name = format!("{name}/{}", entry.file_name().to_string_lossy());
        let extension = path
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default();
        if path.is_dir() {
            collect(&path, &name, files)?;
        } else if matches!(extension, "rs" | "proto" | "toml") {
            files.push((name, path));
        }
    }
    Ok(())
}

/// The CRC-32 of zlib, carried on from `crc`.
fn crc32(crc: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!crc, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())
        })
    })
}
