//! Owns checked calls: error objects, sizes asked before bytes, and the calls that need no model.
//!
//! Every rule that the ABI gives for all functions is asserted here: what is broken in the library
//! ends this program with the function's name.

use crate::abi::*;
use std::ffi::{c_char, c_int, c_void, CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;

/// "name: status: message" of a call that did not answer OK.
pub type Answer<T> = Result<T, String>;

/// Status and message of a call; the error object is judged and freed.
pub fn raw(
    api: &Api,
    name: &str,
    call: impl FnOnce(*mut *mut Error) -> Status,
) -> (Status, String) {
    let mut error: *mut Error = null_mut();
    let status = call(&mut error);
    assert!((0..=7).contains(&status), "{name}: status {status}");
    assert_eq!(status == OK, error.is_null(), "{name}: status {status}, error object {error:?}");
    let mut message = String::new();
    if !error.is_null() {
        let text = unsafe { &*error };
        assert_eq!(text.status, status, "{name}: the object's status differs");
        assert!(!text.message.is_null(), "{name}: no message");
        let bytes = unsafe { CStr::from_ptr(text.message) };
        message = bytes.to_str().expect("a message is UTF-8").to_string();
        assert!(!message.is_empty(), "{name}: an empty message");
        unsafe { (api.skippy_error_free)(error) };
    }
    (status, message)
}

/// A call that must answer OK.
pub fn call(api: &Api, name: &str, call: impl FnOnce(*mut *mut Error) -> Status) -> Answer<()> {
    match raw(api, name, call) {
        (OK, _) => Ok(()),
        (status, message) => Err(format!("{name}: {status}: {message}")),
    }
}

/// Items of a call that ends in buffer, capacity and counter: size first, then exactly that size.
pub fn sized<T: Copy + Default>(
    api: &Api,
    name: &str,
    ask: impl Fn(*mut T, usize, *mut usize, *mut *mut Error) -> Status,
) -> Answer<Vec<T>> {
    let mut needed = usize::MAX;
    match raw(api, name, |error| ask(null_mut(), 0, &mut needed, error)) {
        (OK | BUFFER_TOO_SMALL, _) => {}
        (status, message) => return Err(format!("{name}: {status}: {message}")),
    }
    let mut items = vec![T::default(); needed.max(1)];
    let mut written = usize::MAX;
    call(api, name, |error| ask(items.as_mut_ptr(), items.len(), &mut written, error))?;
    assert_eq!(needed, written, "{name}: a second call has another size");
    items.truncate(written);
    Ok(items)
}

pub fn c_text(text: &str) -> CString {
    CString::new(text).expect("no NUL in a text")
}

fn optional(text: *const c_char) -> String {
    match text.is_null() {
        true => "NULL".into(),
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    }
}

/// Prints the device inventory to standard error.
pub fn devices(api: &Api) -> Answer<()> {
    let mut count = 0;
    call(api, "skippy_backend_device_count", |e| unsafe {
        (api.skippy_backend_device_count)(&mut count, e)
    })?;
    for index in 0..count {
        let mut device: Device = unsafe { std::mem::zeroed() };
        call(api, "skippy_backend_device_at", |e| unsafe {
            (api.skippy_backend_device_at)(index, &mut device, e)
        })?;
        assert_eq!(device.version, 1);
        assert!(device.memory_free <= device.memory_total && device.memory_total > 0);
        let (name, text) = (optional(device.name), optional(device.description));
        eprintln!("device: {index} {name} kind {} {text}", device.kind);
    }
    Ok(())
}

/// Prints how many tensors of each role the file has, as the host looks for recurrent ones.
pub fn model_info(api: &Api, path: &OsStr) -> Answer<()> {
    let (path, mut info) = (CString::new(path.as_bytes()).unwrap(), null_mut());
    call(api, "skippy_model_info_open", |e| unsafe {
        (api.skippy_model_info_open)(path.as_ptr(), &mut info, e)
    })?;
    let (mut count, mut roles) = (0, [0; 7]);
    call(api, "skippy_model_info_tensor_count", |e| unsafe {
        (api.skippy_model_info_tensor_count)(info, &mut count, e)
    })?;
    for index in 0..count {
        let mut tensor: TensorInfo = unsafe { std::mem::zeroed() };
        call(api, "skippy_model_info_tensor_at", |e| unsafe {
            (api.skippy_model_info_tensor_at)(info, index, &mut tensor, e)
        })?;
        assert!(!tensor.name.is_null() && tensor.byte_size > 0 && tensor.element_count > 0);
        roles[tensor.role as usize] += 1;
    }
    call(api, "skippy_model_info_free", |e| unsafe { (api.skippy_model_info_free)(info, e) })?;
    eprintln!("tensors: {count} by role {roles:?}");
    Ok(())
}

/// The assistant message of generated text.
pub fn parse(api: &Api, text: &str, metadata: &str, is_partial: bool) -> Answer<String> {
    let (text, metadata) = (c_text(text), c_text(metadata));
    let bytes = sized(api, "skippy_parse_chat_response_json", |buffer, room, needed, e| unsafe {
        (api.skippy_parse_chat_response_json)(
            text.as_ptr(),
            metadata.as_ptr(),
            is_partial,
            buffer,
            room,
            needed,
            e,
        )
    })?;
    Ok(String::from_utf8(bytes).expect("UTF-8 from the parser"))
}

/// Joins what the library logs; the host ignores the level.
pub unsafe extern "C" fn on_log(_level: c_int, text: *const c_char, _user_data: *mut c_void) {
    eprint!("log: {}", optional(text));
}
