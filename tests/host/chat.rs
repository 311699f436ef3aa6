//! Owns one chat completion as the host makes it, call by call, and the start-up calls before it.
//!
//! Standard output is the streamed answer and nothing else; what the host would only look at goes
//! to standard error, one `key: value` line each.

use crate::abi::{Api, Sampling, FEATURE_RUNTIME_EVENTS};
use crate::calls::{self, Answer};
use crate::json;
use crate::model::{self, Model, Session};
use std::ffi::CStr;
use std::io::Write;
use std::ptr::null;
use std::sync::Mutex;
use std::time::Instant;

/// What to ask, and how.
#[derive(Clone)]
pub struct Request {
    pub prompt: String,
    pub max_tokens: usize,
    /// Seed of a sampled answer; None is greedy, which the host says with a NULL config.
    pub seed: Option<u32>,
    /// Prefill in pieces and decode the last prompt token, as with a prefix cache.
    pub in_pieces: bool,
}

/// What came of it.
#[derive(Debug, PartialEq)]
pub struct Completion {
    pub tokens: Vec<i32>,
    pub n_prompt: usize,
    pub content: String,
    pub finished: bool,
}

impl Request {
    pub fn greedy(prompt: &str, max_tokens: usize) -> Request {
        Request { prompt: prompt.into(), max_tokens, seed: None, in_pieces: false }
    }

    fn messages(&self) -> String {
        format!("[{{\"role\":\"user\",\"content\":{}}}]", json::quoted(&self.prompt))
    }

    /// The host's defaults for a request that says nothing but a seed.
    fn sampling(&self) -> Option<Box<Sampling>> {
        self.seed.map(|seed| {
            Box::new(Sampling {
                version: 1,
                flags: 1,
                seed,
                top_k: 40,
                penalty_last_n: -1,
                temperature: 0.8,
                top_p: 0.95,
                presence_penalty: 0.0,
                frequency_penalty: 0.0,
                repeat_penalty: 1.0,
                logit_bias_count: 0,
                min_p: 0.05,
                logit_bias: [(0, 0.0); 256],
            })
        })
    }
}

/// The calls of a process before its first model.
pub fn start(api: &Api) -> Answer<()> {
    unsafe {
        let features = (api.skippy_abi_features)();
        eprintln!("features: {features:#x}");
        assert_ne!(features & FEATURE_RUNTIME_EVENTS, 0, "models are opened with events");
        for set in [api.llama_log_set, api.ggml_log_set, api.mtmd_helper_log_set] {
            set(Some(calls::on_log), std::ptr::null_mut());
        }
        let marker = CStr::from_ptr((api.mtmd_default_marker)());
        eprintln!("marker: {}", marker.to_string_lossy());
    }
    calls::devices(api)
}

/// One request on an idle session, which is idle again afterwards. Every session call is made
/// under `gate`, text calls are not; `show` gets the content as it grows.
pub fn complete(
    model: &Model,
    session: &Session,
    request: &Request,
    gate: &Mutex<()>,
    show: &mut dyn FnMut(&str),
) -> Answer<Completion> {
    let (prompt, metadata) = model.template(&request.messages())?;
    let tokens = model.tokenize(&prompt)?;
    let sampling = request.sampling();
    let config = sampling.as_deref().map_or(null(), |s| s as *const Sampling);
    let first = prefill(session, request, &tokens, &metadata, config, gate)?;
    let mut answer =
        Answering { model, metadata: &metadata, tokens: vec![], raw: vec![], shown: String::new() };
    let mut token = first;
    let mut finished = true;
    while !model.is_eog(token)? {
        answer.take(token, show)?;
        if answer.tokens.len() == request.max_tokens {
            finished = false;
            break;
        }
        let held = gate.lock().unwrap();
        token = model::decode(&[session], &[token], config)?[0];
        let fed = tokens.len() + answer.tokens.len();
        stands_at(session, fed)?;
        drop(held);
    }
    let held = gate.lock().unwrap();
    session.reset()?;
    stands_at(session, 0)?;
    drop(held);
    let (tokens, n_prompt) = (std::mem::take(&mut answer.tokens), tokens.len());
    Ok(Completion { tokens, n_prompt, content: answer.whole(show)?, finished })
}

/// Position counts the tokens that were fed. Not an assertion: a process that exits answers -1.
fn stands_at(session: &Session, n_fed: usize) -> Answer<()> {
    match session.position() {
        position if position as usize == n_fed => Ok(()),
        position => Err(format!("position {position} after {n_fed} tokens")),
    }
}

/// The first token of the answer.
fn prefill(
    session: &Session,
    request: &Request,
    tokens: &[i32],
    metadata: &str,
    config: *const Sampling,
    gate: &Mutex<()>,
) -> Answer<i32> {
    let _held = gate.lock().unwrap();
    stands_at(session, 0)?;
    if !request.in_pieces && tokens.len() <= session.batch_size() {
        session.configure(config, metadata, tokens.len())?;
        return session.prefill_sampled(tokens, config);
    }
    let (last, before) = tokens.split_last().expect("a prompt of at least one token");
    session.prefill(before)?;
    session.configure(config, metadata, tokens.len())?;
    Ok(model::decode(&[session], &[*last], config)?[0])
}

/// The text side of an answer that is being generated.
struct Answering<'a> {
    model: &'a Model<'a>,
    metadata: &'a str,
    tokens: Vec<i32>,
    raw: Vec<u8>,
    shown: String,
}

impl Answering<'_> {
    /// All tokens so far to text, the whole text parsed, the new part of its content shown.
    fn take(&mut self, token: i32, show: &mut dyn FnMut(&str)) -> Answer<()> {
        self.tokens.push(token);
        let raw = self.model.detokenize(&self.tokens)?;
        assert!(raw.starts_with(&self.raw), "a longer list begins with the shorter one's text");
        self.raw = raw;
        let message = calls::parse(self.model.api, self.text(), self.metadata, true)?;
        self.grow(&message, show);
        Ok(())
    }

    /// The content of the whole answer.
    fn whole(mut self, show: &mut dyn FnMut(&str)) -> Answer<String> {
        let message = calls::parse(self.model.api, self.text(), self.metadata, false)?;
        self.grow(&message, show);
        Ok(self.shown)
    }

    fn text(&self) -> &str {
        match std::str::from_utf8(&self.raw) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&self.raw[..error.valid_up_to()]).unwrap(),
        }
    }

    fn grow(&mut self, message: &str, show: &mut dyn FnMut(&str)) {
        assert_eq!(json::text_field(message, "role").as_deref(), Some("assistant"), "{message}");
        let content = json::text_field(message, "content").unwrap_or_default();
        assert!(content.starts_with(&self.shown), "{content:?} does not extend {:?}", self.shown);
        show(&content[self.shown.len()..]);
        self.shown = content;
    }
}

/// The command `chat`: the whole job once, and once more on the reused session.
pub fn run(api: &Api, path: &std::ffi::OsStr, request: &Request) -> Answer<()> {
    start(api)?;
    let clock = Instant::now();
    let model = Model::open(api, path, 1)?;
    eprintln!("open: {:.2} s", clock.elapsed().as_secs_f64());
    calls::model_info(api, path)?;
    let session = model.session()?;
    warm_up(&session)?;
    let gate = Mutex::new(());
    let clock = Instant::now();
    let mut out = std::io::stdout();
    let done = complete(&model, &session, request, &gate, &mut |piece| {
        out.write_all(piece.as_bytes()).and_then(|()| out.flush()).expect("standard output");
    })?;
    eprintln!("answer: {:.2} s", clock.elapsed().as_secs_f64());
    eprintln!("tokens: {:?} prompt {} finished {}", done.tokens, done.n_prompt, done.finished);
    let again = complete(&model, &session, request, &gate, &mut |_| {})?;
    assert_eq!(done, again, "a reused session answers as a new one");
    session.free()?;
    model.free()
}

/// One token on an otherwise unused state, as later hosts do.
fn warm_up(session: &Session) -> Answer<()> {
    model::decode(&[session], &[0], null())?;
    session.reset()
}
