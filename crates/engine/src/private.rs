//! Files and folders that only their owner may read, whatever the umask says: they hold what was said to agents and
//! what programs printed.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// Creates a folder, and those above it, for the owner only; an existing one does not change.
pub fn create_private_dir_all(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a file to write it from the start. One that exists loses its content, and only its owner can read it
/// from now on.
pub fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    open(path, &mut options)
}

/// Opens a file to write at its end.
pub fn append_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    open(path, &mut options)
}

/// Writes a whole file.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create_private(path)?.write_all(bytes)
}

fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.mode(0o600).open(path)?;
    // Devices and pipes belong to others.
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Makes a folder readable for its owner only. It fails for a folder of another user.
pub fn make_dir_private(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o700))
}
