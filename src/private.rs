//! Files that only their owner should read.

use std::path::Path;

/// The bits of a file's mode that let everybody read or write it.
#[cfg(unix)]
const OTHERS: u32 = 0o006;

/// Whether users beside the owner and the group can read or write the file.
pub(crate) fn is_open_to_others(path: &Path) -> bool {
    #[cfg(unix)]
    return path
        .metadata()
        .is_ok_and(|metadata| std::os::unix::fs::MetadataExt::mode(&metadata) & OTHERS != 0);
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}
