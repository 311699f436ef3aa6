//! Owns the call of every function of the engine library while its interpreter cannot start.
//!
//! The danger is an answer of 0, which means OK here. Arguments are plain words, the same for every
//! signature: no function of the ABI takes a floating-point argument, and the ones here no struct.

use crate::abi::{Api, Error, OK, RUNTIME_ERROR};
use crate::calls;
use crate::loader::Loaded;
use std::ptr::null_mut;

const MAX_ARGUMENTS: usize = 17;
const SCRATCH_BYTES: usize = 4096;
const FILL: u8 = 0x5a;

type AnyFunction = unsafe extern "C" fn(
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
) -> usize;

/// What the answer must be.
#[derive(Clone, Copy, PartialEq)]
enum Expected {
    /// RUNTIME_ERROR and an error object
    Failure,
    /// RUNTIME_ERROR, and the error pointer left alone
    StatusOnly,
    /// this 32-bit value
    Neutral(i32),
    /// a NULL pointer
    Null,
    Nothing,
}
use Expected::*;

/// Name, arguments, answer: H handle, p buffer, h place for a handle, n number, e for an error.
#[rustfmt::skip]
const FUNCTIONS: [(&str, &str, Expected); 69] = [
    ("skippy_ngram_cache_create", "nnhe", StatusOnly),
    ("skippy_ngram_cache_free", "H", Nothing),
    ("skippy_ngram_cache_reset", "Hpne", StatusOnly),
    ("skippy_ngram_cache_append", "Hpne", StatusOnly),
    ("skippy_ngram_cache_draft", "Hpnnpnpe", StatusOnly),
    ("skippy_backend_device_count", "pe", Failure),
    ("skippy_backend_device_at", "npe", Failure),
    ("skippy_model_open", "pphe", Failure),
    ("skippy_model_open_from_parts", "pnphe", Failure),
    ("skippy_model_free", "He", Failure),
    ("skippy_model_llama_model", "H", Null),
    ("skippy_session_create", "Hhe", Failure),
    ("skippy_session_create_from_resident_prefix", "Hnpnhe", Failure),
    ("skippy_session_llama_context", "H", Null),
    ("skippy_session_position", "H", Neutral(-1)),
    ("skippy_session_batch_size", "H", Neutral(0)),
    ("skippy_session_begin_external_decode", "He", Failure),
    ("skippy_session_end_external_decode", "He", Failure),
    ("skippy_session_set_position", "Hne", Failure),
    ("skippy_session_sample_current", "Hppe", Failure),
    ("skippy_session_configure_chat_sampling", "Hppne", Failure),
    ("skippy_session_reset", "He", Failure),
    ("skippy_session_free", "He", Failure),
    ("skippy_prefill_chunk", "Hpnpnpnpe", Failure),
    ("skippy_verify_tokens", "Hpnpnpe", Failure),
    ("skippy_decode_step_sampled", "Hnppnpnppe", Failure),
    ("skippy_decode_batch_sampled", "pppnpne", Failure),
    ("skippy_prefill_chunk_frame", "Hpnppppnpe", Failure),
    ("skippy_prefill_chunk_frame_sampled", "Hpnpppppnppe", Failure),
    ("skippy_prefill_chunk_frame_with_positions", "Hpnpnppppnpe", Failure),
    ("skippy_prefill_chunk_frame_sampled_with_positions", "Hpnpnpppppnppe", Failure),
    ("skippy_decode_step_frame_sampled", "Hnpppppnppe", Failure),
    ("skippy_decode_step_frame_sampled_mtp", "Hnpppppnppnpe", Failure),
    ("skippy_decode_step_frame_batch_sampled", "ppppppppppnne", Failure),
    ("skippy_verify_tokens_frame_sampled", "Hpnpppppnppnpnpe", Failure),
    ("skippy_session_copy_output_activation_frame", "Hnppnpe", Failure),
    ("skippy_session_last_token_signal", "Hpe", Failure),
    ("skippy_session_signal_window", "Hnpe", Failure),
    ("skippy_trim_session", "Hne", Failure),
    ("skippy_retire_verify_checkpoint", "Hnne", Failure),
    ("skippy_export_state", "Hnnpnpe", Failure),
    ("skippy_import_state", "Hnnpne", Failure),
    ("skippy_export_full_state", "Hnnpnpe", Failure),
    ("skippy_import_full_state", "Hnnpne", Failure),
    ("skippy_export_kv_page", "Hnnnnppnpe", Failure),
    ("skippy_import_kv_page", "Hppne", Failure),
    ("skippy_export_recurrent_state", "Hpnpe", Failure),
    ("skippy_import_recurrent_state", "Hpne", Failure),
    ("skippy_session_save_prefix", "Hnne", Failure),
    ("skippy_session_restore_prefix", "Hnpne", Failure),
    ("skippy_session_drop_sequence", "Hne", Failure),
    ("skippy_tokenize", "Hpnpnpe", Failure),
    ("skippy_detokenize", "Hpnpnpe", Failure),
    ("skippy_token_is_eog", "Hnpe", Failure),
    ("skippy_model_info_open", "phe", Failure),
    ("skippy_model_info_free", "He", Failure),
    ("skippy_model_info_tensor_count", "Hpe", Failure),
    ("skippy_model_info_tensor_at", "Hnpe", Failure),
    ("skippy_slice_plan_create", "Hhe", Failure),
    ("skippy_slice_plan_free", "He", Failure),
    ("skippy_slice_plan_add_layer_range", "Hnnnnne", Failure),
    ("skippy_write_slice_gguf", "HHnpe", Failure),
    ("skippy_write_gguf_from_parts", "pnpe", Failure),
    ("skippy_model_open_with_events", "ppphe", Failure),
    ("skippy_model_attach_mtp_draft_model", "Hppe", Failure),
    ("skippy_decode_step_sampled_mtp", "Hnppnpe", Failure),
    ("skippy_model_open_from_parts_with_events", "pnpphe", Failure),
    ("skippy_apply_chat_template_json", "Hpppnnnnpppnppnpe", Failure),
    ("skippy_parse_chat_response_json", "ppnpnpe", Failure),
];

/// Names of the engine's library that need no interpreter: answered, whatever happened.
const WITHOUT_PYTHON: [&str; 3] =
    ["skippy_abi_version", "skippy_abi_features", "skippy_error_free"];

/// `broken CAUSE`: every answer must be a refusal whose message has `cause` in it.
pub fn run(loaded: &Loaded, api: &Api, cause: &str) -> Result<(), String> {
    let missing: Vec<_> = crate::names::all()
        .filter(|name| name.starts_with("skippy_") && !WITHOUT_PYTHON.contains(name))
        .filter(|name| FUNCTIONS.iter().all(|row| row.0 != *name))
        .collect();
    assert!(missing.is_empty(), "never called: {missing:?}");
    unsafe { (api.skippy_error_free)(null_mut()) };
    assert_ne!(unsafe { (api.skippy_abi_features)() }, 0);
    for (name, arguments, expected) in FUNCTIONS {
        judge(api, name, arguments, expected, loaded.function(name)?, cause);
        println!("{name}: refused");
    }
    for name in ["skippy_model_free", "skippy_session_free", "skippy_model_info_free"] {
        let free: unsafe extern "C" fn(*mut u8, *mut *mut Error) -> i32 = loaded.function(name)?;
        calls::call(api, name, |e| unsafe { free(null_mut(), e) })?;
    }
    Ok(())
}

fn judge(
    api: &Api,
    name: &str,
    letters: &str,
    expected: Expected,
    function: AnyFunction,
    cause: &str,
) {
    let mut scratch = [FILL; SCRATCH_BYTES];
    let mut handle = FILL as usize;
    let mut words = [0usize; MAX_ARGUMENTS];
    let untouched = FILL as usize as *mut Error;
    let mut left = untouched;
    let mut invoke = |error: *mut *mut Error| {
        for (word, letter) in words.iter_mut().zip(letters.chars()) {
            *word = match letter {
                'H' => 16,
                'p' => scratch.as_mut_ptr() as usize,
                'h' => &mut handle as *mut usize as usize,
                'n' => 1,
                'e' => error as usize,
                other => panic!("{name}: argument letter {other}"),
            };
        }
        let w = words;
        unsafe {
            function(
                w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12],
                w[13], w[14], w[15], w[16],
            )
        }
    };
    match expected {
        Failure => {
            let (status, message) = calls::raw(api, name, |error| invoke(error) as i32);
            assert_eq!(status, RUNTIME_ERROR, "{name}: {message}");
            assert!(message.contains(cause), "{name}: no {cause:?} in {message:?}");
            assert_eq!(invoke(null_mut()) as i32, RUNTIME_ERROR, "{name} without an error place");
        }
        StatusOnly => {
            assert_eq!(invoke(&mut left) as i32, RUNTIME_ERROR, "{name}");
            assert_eq!(left, untouched, "{name} wrote an error");
        }
        Neutral(value) => assert_eq!(invoke(null_mut()) as i32, value, "{name}"),
        Null => assert_eq!(invoke(null_mut()), OK as usize, "{name}: not NULL"),
        Nothing => drop(invoke(null_mut())),
    }
    assert_eq!(handle == 0, letters.contains('h'), "{name}: handle {handle:#x}");
    assert!(scratch.iter().all(|&byte| byte == FILL), "{name} wrote into a buffer");
}
