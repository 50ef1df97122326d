//! Files that only their owner should read.

#[cfg(unix)]
use std::path::Component;
use std::path::Path;

/// The bits of a file's mode that let everybody read or write it.
#[cfg(unix)]
const OTHERS: u32 = 0o006;

/// Whether users beside the owner and the group can read or write the file. Files that Kubernetes has written for a
/// container are only in its pod, and their mode is 644 unless the pod sets another.
pub(crate) fn is_open_to_others(path: &Path) -> bool {
    #[cfg(unix)]
    return !is_of_kubernetes(path)
        && path
            .metadata()
            .is_ok_and(|metadata| std::os::unix::fs::MetadataExt::mode(&metadata) & OTHERS != 0);
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}

/// Whether symlinks lead to a directory that is named as Kubernetes names those of a volume, such as
/// `..2026_11_28_22_00_00.123`, to which `..data` leads.
#[cfg(unix)]
fn is_of_kubernetes(path: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| {
        let mut names = path.components().map(Component::as_os_str);
        names.any(|name| name.as_encoded_bytes().starts_with(b"..2"))
    })
}
