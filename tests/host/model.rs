//! Owns an open model and a live session as values, with every call of the chat path as a method.
//!
//! A call's own rules are asserted here; what holds for all calls is in `calls.rs`.

use crate::abi::*;
use crate::calls::{c_text, call, raw, sized, Answer};
use std::ffi::{c_void, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{null, null_mut};

unsafe extern "C" fn on_event(event: *const Event, sequence: *mut c_void) {
    let (event, last) = (&*event, &mut *(sequence as *mut u64));
    assert_eq!((event.abi_version, event.struct_size, event.session_id), (1, 112, 0));
    assert_eq!(event.sequence, *last + 1, "event sequence");
    *last = event.sequence;
    let detail = match event.detail_ptr.is_null() {
        true => "-",
        false => {
            let bytes = std::slice::from_raw_parts(event.detail_ptr, event.detail_len as usize);
            std::str::from_utf8(bytes).unwrap_or("(not UTF-8)")
        }
    };
    if event.kind != 2 || event.progress_current == event.progress_total {
        eprintln!("event: kind {} failure {} {detail}", event.kind, event.failure_code);
    }
}

/// An open model. The host calls it from changing threads, so it may cross them.
pub struct Model<'a> {
    pub api: &'a Api,
    handle: Handle,
}

unsafe impl Send for Model<'_> {}
unsafe impl Sync for Model<'_> {}

impl<'a> Model<'a> {
    /// Opens with events, printed to standard error, and the host's plain single-stage config.
    pub fn open(api: &'a Api, path: &OsStr, lanes: i32) -> Answer<Model<'a>> {
        let path = CString::new(path.as_bytes()).unwrap();
        let config = Config {
            ctx_size: 256 * lanes.max(2),
            lane_count: lanes,
            n_batch: if lanes > 1 { 1024 } else { 2048 },
            n_ubatch: 512,
            n_gpu_layers: -1,
            cache_type_k: 1,
            cache_type_v: 1,
            flash_attn_type: -1,
            include_embeddings: true,
            include_output: true,
            ..unsafe { std::mem::zeroed() }
        };
        let mut sequence = 0u64;
        let reporter = Reporter {
            abi_version: 1,
            struct_size: std::mem::size_of::<Reporter>() as u32,
            callback: Some(on_event),
            user_data: &mut sequence as *mut u64 as *mut c_void,
        };
        let mut handle = 1 as Handle;
        let opened = call(api, "skippy_model_open_with_events", |e| unsafe {
            (api.skippy_model_open_with_events)(path.as_ptr(), &config, &reporter, &mut handle, e)
        });
        assert_eq!(opened.is_ok(), !handle.is_null(), "the handle after {opened:?}");
        assert!(opened.is_err() || sequence >= 4, "{sequence} events of an open call");
        opened.map(|()| Model { api, handle })
    }

    pub fn free(self) -> Answer<()> {
        call(self.api, "skippy_model_free", |e| unsafe {
            (self.api.skippy_model_free)(self.handle, e)
        })
    }

    pub fn tokenize(&self, text: &str) -> Answer<Vec<i32>> {
        let text = c_text(text);
        sized(self.api, "skippy_tokenize", |buffer, room, needed, e| unsafe {
            (self.api.skippy_tokenize)(self.handle, text.as_ptr(), true, buffer, room, needed, e)
        })
    }

    pub fn detokenize(&self, tokens: &[i32]) -> Answer<Vec<u8>> {
        sized(self.api, "skippy_detokenize", |buffer, room, needed, e| unsafe {
            (self.api.skippy_detokenize)(
                self.handle,
                tokens.as_ptr(),
                tokens.len(),
                buffer,
                room,
                needed,
                e,
            )
        })
    }

    pub fn is_eog(&self, token: i32) -> Answer<bool> {
        let mut answer = 2u8;
        call(self.api, "skippy_token_is_eog", |e| unsafe {
            (self.api.skippy_token_is_eog)(
                self.handle,
                token,
                &mut answer as *mut u8 as *mut bool,
                e,
            )
        })?;
        assert!(answer < 2, "skippy_token_is_eog: a bool of {answer}");
        Ok(answer == 1)
    }

    /// Prompt text and metadata of one user message.
    pub fn template(&self, messages: &str) -> Answer<(String, String)> {
        let (name, api) = ("skippy_apply_chat_template_json", self.api);
        let (messages, format) = (c_text(messages), c_text("auto"));
        let ask = |text: &mut [u8], meta: &mut [u8], sizes: &mut [usize; 2], e| unsafe {
            let [a, b] = sizes;
            // An empty slice is a dangling pointer that is not NULL, as the host passes it.
            (api.skippy_apply_chat_template_json)(
                self.handle,
                messages.as_ptr(),
                null(),
                null(),
                true,
                false,
                true,
                true,
                format.as_ptr(),
                null(),
                text.as_mut_ptr(),
                text.len(),
                a,
                meta.as_mut_ptr(),
                meta.len(),
                b,
                e,
            )
        };
        let (mut needed, mut written) = ([0; 2], [0; 2]);
        let (status, message) = raw(api, name, |e| ask(&mut [], &mut [], &mut needed, e));
        if status != BUFFER_TOO_SMALL {
            return Err(format!("{name}: {status}: {message}"));
        }
        let [mut text, mut meta] = needed.map(|n| vec![0u8; n.max(1)]);
        call(api, name, |e| ask(&mut text, &mut meta, &mut written, e))?;
        assert_eq!(needed, written, "{name}: a second call has other sizes");
        text.truncate(written[0]);
        meta.truncate(written[1]);
        let whole = |bytes| String::from_utf8(bytes).expect("UTF-8 from the template");
        Ok((whole(text), whole(meta)))
    }

    pub fn session(&self) -> Answer<Session<'a>> {
        let (api, mut handle) = (self.api, 1 as Handle);
        let made = call(api, "skippy_session_create", |e| unsafe {
            (api.skippy_session_create)(self.handle, &mut handle, e)
        });
        assert_eq!(made.is_ok(), !handle.is_null(), "the handle after {made:?}");
        made.map(|()| Session { api, handle })
    }
}

/// A live session.
pub struct Session<'a> {
    api: &'a Api,
    handle: Handle,
}

unsafe impl Send for Session<'_> {}

impl Session<'_> {
    pub fn free(self) -> Answer<()> {
        call(self.api, "skippy_session_free", |e| unsafe {
            (self.api.skippy_session_free)(self.handle, e)
        })
    }

    pub fn reset(&self) -> Answer<()> {
        call(self.api, "skippy_session_reset", |e| unsafe {
            (self.api.skippy_session_reset)(self.handle, e)
        })
    }

    pub fn position(&self) -> i32 {
        unsafe { (self.api.skippy_session_position)(self.handle) }
    }

    pub fn batch_size(&self) -> usize {
        let tokens = unsafe { (self.api.skippy_session_batch_size)(self.handle) };
        usize::try_from(tokens).ok().filter(|&n| n > 0).expect("a batch of at least one token")
    }

    pub fn configure(
        &self,
        sampling: *const Sampling,
        metadata: &str,
        prompt: usize,
    ) -> Answer<()> {
        let (name, metadata) = ("skippy_session_configure_chat_sampling", c_text(metadata));
        call(self.api, name, |e| unsafe {
            (self.api.skippy_session_configure_chat_sampling)(
                self.handle,
                sampling,
                metadata.as_ptr(),
                prompt as u64,
                e,
            )
        })
    }

    /// All tokens, in pieces of the batch size.
    pub fn prefill(&self, tokens: &[i32]) -> Answer<()> {
        for piece in tokens.chunks(self.batch_size()) {
            let mut bytes = usize::MAX;
            call(self.api, "skippy_prefill_chunk", |e| unsafe {
                (self.api.skippy_prefill_chunk)(
                    self.handle,
                    piece.as_ptr(),
                    piece.len(),
                    null(),
                    0,
                    null_mut(),
                    0,
                    &mut bytes,
                    e,
                )
            })?;
            assert_eq!(bytes, 0);
        }
        Ok(())
    }

    /// The whole prompt in one call, and the first token.
    pub fn prefill_sampled(&self, tokens: &[i32], sampling: *const Sampling) -> Answer<i32> {
        let (mut desc, mut bytes, mut token) = (ActivationDesc::default(), usize::MAX, -7);
        call(self.api, "skippy_prefill_chunk_frame_sampled", |e| unsafe {
            (self.api.skippy_prefill_chunk_frame_sampled)(
                self.handle,
                tokens.as_ptr(),
                tokens.len(),
                sampling,
                null(),
                null(),
                &mut desc,
                null_mut(),
                0,
                &mut bytes,
                &mut token,
                e,
            )
        })?;
        let shown = (desc.version, desc.dtype, desc.layout, desc.payload_bytes, bytes);
        assert_eq!(shown, (1, 0, 0, 0, 0), "{desc:?}");
        assert_eq!(desc.token_count as usize, tokens.len());
        Ok(token)
    }
}

/// One token for each session, in one call; all sessions of one model.
pub fn decode(
    sessions: &[&Session],
    tokens: &[i32],
    sampling: *const Sampling,
) -> Answer<Vec<i32>> {
    let api = sessions[0].api;
    let handles: Vec<Handle> = sessions.iter().map(|s| s.handle).collect();
    let configs = vec![sampling; sessions.len()];
    let mut next = vec![-7; sessions.len()];
    call(api, "skippy_decode_batch_sampled", |e| unsafe {
        (api.skippy_decode_batch_sampled)(
            handles.as_ptr(),
            tokens.as_ptr(),
            configs.as_ptr(),
            next.len(),
            next.as_mut_ptr(),
            next.len(),
            e,
        )
    })?;
    Ok(next)
}
