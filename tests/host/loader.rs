//! Owns opening the libraries and looking symbols up in the order of MeshLLM's loader.
//!
//! Lazy and local opening, version first and exact, then the required names in their order, each
//! from the last library backwards. It knows no signature except the version's; those are `abi.rs`.

use crate::names::REQUIRED;
use std::ffi::{c_char, c_int, c_void, CStr, CString, OsString};
use std::os::unix::ffi::OsStrExt;

const RTLD_LAZY: c_int = 1;
const RTLD_LOCAL: c_int = 0;
pub const VERSION: Version = Version(0, 1, 39);

#[repr(C)]
#[derive(Debug, PartialEq)]
pub struct Version(u32, u32, u32);

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

/// The open libraries, in load order. Nothing is ever closed.
pub struct Loaded {
    pub paths: Vec<OsString>,
    handles: Vec<*mut c_void>,
}

impl Loaded {
    /// Opens every library and checks the version; the message of a failure names its library.
    pub fn open(paths: Vec<OsString>) -> Result<Loaded, String> {
        if paths.is_empty() {
            return Err("no library given".into());
        }
        let mut handles = Vec::new();
        for path in &paths {
            let name = CString::new(path.as_bytes()).map_err(|e| e.to_string())?;
            let handle = unsafe { dlopen(name.as_ptr(), RTLD_LAZY | RTLD_LOCAL) };
            if handle.is_null() {
                let why = unsafe { CStr::from_ptr(dlerror()) };
                return Err(format!("{}: {}", path.to_string_lossy(), why.to_string_lossy()));
            }
            handles.push(handle);
        }
        let loaded = Loaded { paths, handles };
        let version: unsafe extern "C" fn() -> Version = loaded.function("skippy_abi_version")?;
        let found = unsafe { version() };
        match found == VERSION {
            true => Ok(loaded),
            false => Err(format!("libraries speak ABI {found:?}, this host {VERSION:?}")),
        }
    }

    /// Index of the providing library and the address.
    pub fn find(&self, name: &str) -> Option<(usize, *mut c_void)> {
        let c_name = CString::new(name).unwrap();
        (0..self.handles.len()).rev().find_map(|i| {
            let found = unsafe { dlsym(self.handles[i], c_name.as_ptr()) };
            (!found.is_null()).then_some((i, found))
        })
    }

    /// The function as the pointer type that the caller says it has.
    pub fn function<F: Copy>(&self, name: &str) -> Result<F, String> {
        assert_eq!(std::mem::size_of::<F>(), std::mem::size_of::<*mut c_void>());
        match self.find(name) {
            Some((_, found)) => Ok(unsafe { std::mem::transmute_copy(&found) }),
            None => Err(format!("symbol not found: {name}")),
        }
    }

    /// Ends at the first required symbol that no library has.
    pub fn resolve(&self) -> Result<(), String> {
        match REQUIRED.iter().find(|name| self.find(name).is_none()) {
            Some(name) => Err(format!("symbol not found: {name}")),
            None => Ok(()),
        }
    }
}
