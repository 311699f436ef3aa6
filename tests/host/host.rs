//! A native host for tests: opens the libraries as MeshLLM's loader does and makes its calls.
//!
//!     host LIBRARY... -- COMMAND [ARGUMENT...]
//!
//! Owns the command line; README.md lists the commands. Only the standard library is used, and
//! nothing of this project: what the ABI is, is written down here a second time.

mod abi;
mod broken;
mod calls;
mod chat;
mod json;
mod loader;
mod model;
mod names;
mod process;
mod text;
mod threads;

use chat::Request;
use loader::Loaded;
use std::ffi::OsString;
use std::process::ExitCode;

const USAGE: &str = "usage: host LIBRARY... -- COMMAND [ARGUMENT...]";

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let outcome = match words.iter().position(|word| word == "--") {
        Some(at) => run(words[..at].to_vec(), &words[at + 1..]),
        None => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The empty reason is the one case that leaves by returning from here.
        Err(reason) if reason.is_empty() => ExitCode::from(3),
        Err(reason) => {
            eprintln!("host: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(libraries: Vec<OsString>, words: &[OsString]) -> Result<(), String> {
    let text = |at: usize| words.get(at).map_or("", |w| w.to_str().unwrap_or(""));
    let number = |at: usize| text(at).parse().map_err(|_| format!("argument {at} is no number"));
    let model = words.get(1).cloned().unwrap_or_default();
    match (text(0), text(2)) {
        ("process", "state") => return process::state(libraries, &model),
        ("process", "born") => return process::born(libraries, &model),
        ("process", "closed") => return process::closed(libraries, &model),
        ("resolve", _) => return resolve(&Loaded::open(libraries)?),
        _ => {}
    }
    let loaded: &'static Loaded = Box::leak(Box::new(Loaded::open(libraries)?));
    loaded.resolve()?;
    let api: &'static abi::Api = Box::leak(Box::new(abi::Api::of(loaded)?));
    match (text(0), text(2)) {
        ("chat", prompt) => chat::run(api, &model, &request(prompt, &words[3..])?),
        ("threads", _) => threads::run(api, &model, number(2)?, number(3)?),
        ("broken", _) => broken::run(loaded, api, text(1)),
        ("detok-inventory", _) => text::inventory(api, &model, number(2)? as i32),
        ("noop-cost", _) => text::noop_cost(api, &model),
        ("open", _) => model::Model::open(api, &model, 1)?.free(),
        ("info", _) => calls::model_info(api, &model),
        ("process", "reopen") => process::reopen(api, &model),
        ("process", how) => process::leave(api, &model, how, number(3).unwrap_or(0)),
        (other, _) => Err(format!("no command {other:?}; {USAGE}")),
    }
}

/// `--max N`, `--seed S`, `--pieces`.
fn request(prompt: &str, options: &[OsString]) -> Result<Request, String> {
    let mut request = Request::greedy(prompt, 16);
    let mut words = options.iter().map(|w| w.to_string_lossy());
    while let Some(word) = words.next() {
        let value = |next: Option<_>| {
            let text: Option<std::borrow::Cow<str>> = next;
            text.and_then(|t| t.parse::<u32>().ok()).ok_or(format!("{word} needs a number"))
        };
        match &*word {
            "--max" => request.max_tokens = value(words.next())? as usize,
            "--seed" => request.seed = Some(value(words.next())?),
            "--pieces" => request.in_pieces = true,
            other => return Err(format!("no option {other:?}")),
        }
    }
    Ok(request)
}

/// Who provides what, in the order of the look-ups; a missing name is a line, not the end.
fn resolve(loaded: &Loaded) -> Result<(), String> {
    for name in names::all() {
        match loaded.find(name) {
            Some((index, _)) => {
                let path = std::path::Path::new(&loaded.paths[index]);
                println!("{name} {}", path.file_name().unwrap_or_default().to_string_lossy());
            }
            None => println!("{name} missing"),
        }
    }
    Ok(())
}
