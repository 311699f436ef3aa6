//! Owns the structs and signatures of ABI 0.1.39 that the chat path uses, written from the ABI.
//!
//! Knows no behaviour. A size is asserted for every struct; status numbers stay plain integers, so
//! that a wrong one can be reported instead of being undefined.

use crate::loader::Loaded;
use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;

pub type Status = c_int;
pub const OK: Status = 0;
pub const BUFFER_TOO_SMALL: Status = 4;
pub const RUNTIME_ERROR: Status = 7;
pub const FEATURE_RUNTIME_EVENTS: u64 = 1 << 24;

/// A model, session or model info: opaque, and never looked into.
pub type Handle = *mut c_void;
pub type LogCallback = unsafe extern "C" fn(c_int, *const c_char, *mut c_void);
pub type EventCallback = unsafe extern "C" fn(*const Event, *mut c_void);

#[repr(C)]
pub struct Error {
    pub status: Status,
    pub message: *const c_char,
}

#[repr(C)]
pub struct Device {
    pub version: u32,
    pub name: *const c_char,
    pub description: *const c_char,
    pub device_id: *const c_char,
    pub memory_free: u64,
    pub memory_total: u64,
    pub kind: c_int,
    pub caps: u64,
}

#[repr(C)]
pub struct Event {
    pub abi_version: u32,
    pub struct_size: u32,
    pub category: u32,
    pub kind: u32,
    pub emitter: u32,
    pub reserved0: u32,
    pub sequence: u64,
    pub timestamp_mono_ns: u64,
    pub model_id: u64,
    pub stage_id: u64,
    pub session_id: u64,
    pub progress_current: u64,
    pub progress_total: u64,
    pub progress_unit: u32,
    pub failure_code: u32,
    pub status: i32,
    pub reserved1: u32,
    pub detail_ptr: *const u8,
    pub detail_len: u64,
}

#[repr(C)]
pub struct Reporter {
    pub abi_version: u32,
    pub struct_size: u32,
    pub callback: Option<EventCallback>,
    pub user_data: *mut c_void,
}

#[repr(C)]
pub struct TensorInfo {
    pub name: *const c_char,
    pub layer_index: i32,
    pub role: c_int,
    pub ggml_type: u32,
    pub byte_size: u64,
    pub element_count: u64,
}

#[repr(C)]
pub struct Config {
    pub stage_index: i32,
    pub layer_start: i32,
    pub layer_end: i32,
    pub ctx_size: i32,
    pub lane_count: i32,
    pub n_batch: i32,
    pub n_ubatch: i32,
    pub n_threads: i32,
    pub n_threads_batch: i32,
    pub n_gpu_layers: i32,
    pub has_mmap_override: bool,
    pub use_mmap: bool,
    pub use_mlock: bool,
    pub cache_type_k: i32,
    pub cache_type_v: i32,
    pub flash_attn_type: i32,
    pub load_mode: c_int,
    pub disable_repack: bool,
    pub use_mmap_prefetch: bool,
    pub use_mmap_buffer: bool,
    pub filter_tensors_on_load: bool,
    pub include_embeddings: bool,
    pub include_output: bool,
    pub mtp_source: c_int,
    pub selected_backend_device: *const c_char,
    pub glm_dsa: [i32; 4],
    pub glm_dsa_mask_max_bytes: u64,
    pub glm_dsa_compact_flash_min_kv: i32,
}

#[repr(C)]
pub struct Sampling {
    pub version: u32,
    pub flags: u32,
    pub seed: u32,
    pub top_k: i32,
    pub penalty_last_n: i32,
    pub temperature: f32,
    pub top_p: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub repeat_penalty: f32,
    pub logit_bias_count: u32,
    pub min_p: f32,
    pub logit_bias: [(i32, f32); 256],
}

#[repr(C)]
#[derive(Debug, Default, PartialEq)]
pub struct ActivationDesc {
    pub version: u32,
    pub dtype: c_int,
    pub layout: c_int,
    pub producer_stage_index: i32,
    pub layer_start: i32,
    pub layer_end: i32,
    pub token_count: u32,
    pub sequence_count: u32,
    pub payload_bytes: u64,
    pub flags: u64,
}

const _: () = assert!(size_of::<Error>() == 16 && size_of::<Device>() == 64);
const _: () = assert!(size_of::<Event>() == 112 && size_of::<Reporter>() == 24);
const _: () = assert!(size_of::<TensorInfo>() == 40 && size_of::<Config>() == 112);
const _: () = assert!(size_of::<Sampling>() == 2096 && size_of::<ActivationDesc>() == 48);

type Out<T> = *mut T;
type In<T> = *const T;
type Failed = *mut *mut Error;

macro_rules! api {
    ($($name:ident($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// Every function that this host calls by its type.
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Api {
            /// Looks all of them up; the first missing one is the error.
            pub fn of(loaded: &Loaded) -> Result<Api, String> {
                Ok(Api { $($name: loaded.function(stringify!($name))?,)* })
            }
        }
    };
}

api! {
    llama_log_set(Option<LogCallback>, *mut c_void);
    ggml_log_set(Option<LogCallback>, *mut c_void);
    mtmd_helper_log_set(Option<LogCallback>, *mut c_void);
    mtmd_default_marker() -> In<c_char>;
    skippy_abi_features() -> u64;
    skippy_error_free(*mut Error);
    skippy_backend_device_count(Out<usize>, Failed) -> Status;
    skippy_backend_device_at(usize, Out<Device>, Failed) -> Status;
    skippy_model_open_with_events(In<c_char>, In<Config>, In<Reporter>, Out<Handle>, Failed)
        -> Status;
    skippy_model_free(Handle, Failed) -> Status;
    skippy_model_info_open(In<c_char>, Out<Handle>, Failed) -> Status;
    skippy_model_info_free(Handle, Failed) -> Status;
    skippy_model_info_tensor_count(Handle, Out<usize>, Failed) -> Status;
    skippy_model_info_tensor_at(Handle, usize, Out<TensorInfo>, Failed) -> Status;
    skippy_session_create(Handle, Out<Handle>, Failed) -> Status;
    skippy_session_free(Handle, Failed) -> Status;
    skippy_session_reset(Handle, Failed) -> Status;
    skippy_session_position(Handle) -> i32;
    skippy_session_batch_size(Handle) -> i32;
    skippy_session_configure_chat_sampling(Handle, In<Sampling>, In<c_char>, u64, Failed) -> Status;
    skippy_prefill_chunk(Handle, In<i32>, usize, In<c_void>, usize, Out<c_void>, usize, Out<usize>,
        Failed) -> Status;
    skippy_prefill_chunk_frame_sampled(Handle, In<i32>, usize, In<Sampling>, In<ActivationDesc>,
        In<c_void>, Out<ActivationDesc>, Out<c_void>, usize, Out<usize>, Out<i32>, Failed)
        -> Status;
    skippy_decode_batch_sampled(In<Handle>, In<i32>, In<In<Sampling>>, usize, Out<i32>, usize,
        Failed) -> Status;
    skippy_token_is_eog(Handle, i32, Out<bool>, Failed) -> Status;
    skippy_tokenize(Handle, In<c_char>, bool, Out<i32>, usize, Out<usize>, Failed) -> Status;
    skippy_detokenize(Handle, In<i32>, usize, Out<u8>, usize, Out<usize>, Failed) -> Status;
    skippy_apply_chat_template_json(Handle, In<c_char>, In<c_char>, In<c_char>, bool, bool, bool,
        bool, In<c_char>, In<c_char>, Out<u8>, usize, Out<usize>, Out<u8>, usize, Out<usize>,
        Failed) -> Status;
    skippy_parse_chat_response_json(In<c_char>, In<c_char>, bool, Out<u8>, usize, Out<usize>,
        Failed) -> Status;
}
