//! Where a store may be: on a file system whose locks, syncs and shared memory work for every process that can reach
//! it.

use std::path::Path;

use crate::StoreError;

/// Refuses a folder on a network file system. An unknown file system is accepted.
pub(super) fn check(store: &Path, folder: &Path) -> Result<(), StoreError> {
    match network(folder) {
        Some(kind) => Err(StoreError::NetworkFileSystem { path: store.to_owned(), kind }),
        None => Ok(()),
    }
}

#[cfg(target_os = "linux")]
fn network(folder: &Path) -> Option<String> {
    let magic = rustix::fs::statfs(folder).ok()?.f_type;
    // The kernel keeps 32 bits, signed or unsigned.
    match magic as u32 {
        FUSE => {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
            let kind = mounted(&mounts, folder.canonicalize().ok()?.to_str()?)?;
            is_network(kind).then(|| kind.to_owned())
        }
        magic => by_magic(magic).map(str::to_owned),
    }
}

#[cfg(not(target_os = "linux"))]
fn network(_: &Path) -> Option<String> {
    None
}

const FUSE: u32 = 0x6573_5546;

/// From the kernel's `magic.h`. Plan 9's protocol (`9p`) is missing on purpose: virtual machines and sandboxes
/// use it for a disk of the same machine.
const MAGIC: &[(u32, &str)] = &[
    (0x6969, "nfs"),
    (0x517b, "smb"),
    (0xfe53_4d42, "smb2"),
    (0xff53_4d42, "cifs"),
    (0x564c, "ncp"),
    (0x7375_7245, "coda"),
    (0x5346_414f, "afs"),
    (0x6b41_4653, "kafs"),
    (0x00c3_6400, "ceph"),
    (0x0bd0_0bd0, "lustre"),
    (0x1980_0202, "beegfs"),
];

fn by_magic(magic: u32) -> Option<&'static str> {
    MAGIC.iter().find(|(known, _)| *known == magic).map(|(_, kind)| *kind)
}

/// The FUSE file systems that reach over a network.
fn is_network(kind: &str) -> bool {
    let program = kind.strip_prefix("fuse.").unwrap_or(kind);
    matches!(
        program,
        "sshfs"
            | "rclone"
            | "s3fs"
            | "gcsfuse"
            | "glusterfs"
            | "ceph"
            | "ceph-fuse"
            | "smbnetfs"
            | "davfs"
            | "davfs2"
            | "curlftpfs"
            | "goofys"
            | "mount-s3"
            | "blobfuse2"
            | "juicefs"
            | "hdfs"
    )
}

/// The type of the file system of `path`: the deepest mount above it, and of several there the newest.
fn mounted<'a>(mountinfo: &'a str, path: &str) -> Option<&'a str> {
    let mut found: Option<(usize, &str)> = None;
    for line in mountinfo.lines() {
        let (before, after) = line.split_once(" - ")?;
        let Some(point) = before.split(' ').nth(4) else { continue };
        let point = point.replace("\\040", " ");
        let inside = path.strip_prefix(point.trim_end_matches('/'));
        let above = inside.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if above && found.is_none_or(|(depth, _)| point.len() >= depth) {
            found = Some((point.len(), after.split(' ').next()?));
        }
    }
    found.map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        let seen = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0xef53, 0x0102_1994, 0x9123_683e].map(by_magic);
        assert_eq!(seen, [Some("nfs"), Some("smb"), Some("cifs"), Some("smb2"), None, None, None]);
    }

    #[test]
    fn a_program_that_is_a_file_system_is_known_by_its_name() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/a rw\n\
                      30 22 0:40 / /mnt/far\\040away rw shared:1 - fuse.sshfs host: rw\n\
                      31 22 0:41 / /mnt/near rw - fuse.bindfs x rw\n\
                      32 31 0:42 / /mnt/near rw - fuseblk /dev/b rw\n";
        let paths = ["/mnt/far away/a", "/mnt/near/b", "/mnt/nearer", "/mnt/far", "/"];
        let kinds = paths.map(|path| mounted(mounts, path).unwrap());
        assert_eq!(kinds, ["fuse.sshfs", "fuseblk", "ext4", "ext4", "ext4"]);
        assert_eq!(kinds.map(is_network), [true, false, false, false, false]);
    }

    #[test]
    fn a_local_folder_is_let_in() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(check(&folder.path().join("store.db"), folder.path()), Ok(()));
    }
}
