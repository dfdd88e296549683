//! Folders of devices for tests.

use std::fs;
use std::path::PathBuf;

/// A folder of devices that is removed at the end.
pub(crate) struct Devices(pub PathBuf);

impl Devices {
    pub fn with(name: &str, files: &[(&str, &str)]) -> Self {
        let folder = std::env::temp_dir().join(format!("devices-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(folder)
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
