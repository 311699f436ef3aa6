//! Owns the main job from several native threads at once, and that nothing changes by it.

use crate::abi::Api;
use crate::calls::Answer;
use crate::chat::{self, Completion, Request};
use crate::model::{self, Model, Session};
use std::ffi::OsStr;
use std::ptr::null;
use std::sync::Mutex;

const MAX_TOKENS: usize = 12;

/// Different prompts of different lengths, every third one sampled, every second in pieces.
fn request(index: usize) -> Request {
    Request {
        seed: (index % 3 == 2).then_some(1000 + index as u32),
        in_pieces: index % 2 == 1,
        ..Request::greedy(&format!("Count {} to {index}.", "and again ".repeat(index)), MAX_TOKENS)
    }
}

/// `threads MODEL N_THREADS N_ROUNDS`: serially, then `n_threads` at once for some rounds, on
/// sessions that change hands each round, then all sessions in one batch.
pub fn run(api: &Api, path: &OsStr, n_threads: usize, n_rounds: usize) -> Answer<()> {
    chat::start(api)?;
    let model = Model::open(api, path, n_threads as i32)?;
    let gate = Mutex::new(());
    let sessions: Answer<Vec<_>> = (0..n_threads).map(|_| model.session()).collect();
    let sessions: Vec<_> = sessions?.into_iter().map(Mutex::new).collect();
    assert!(model.session().is_err(), "one session more than lanes");
    let serial: Answer<Vec<Completion>> = (0..n_threads)
        .map(|i| {
            chat::complete(&model, &sessions[0].lock().unwrap(), &request(i), &gate, &mut |_| {})
        })
        .collect();
    let serial = serial?;
    for round in 0..n_rounds {
        let together = at_once(&model, &sessions, round, &gate)?;
        assert_eq!(serial, together, "round {round}: threads answer as the serial run");
    }
    let sessions: Vec<Session> = sessions.into_iter().map(|s| s.into_inner().unwrap()).collect();
    batch(&model, &sessions)?;
    println!("{n_threads} threads, {n_rounds} rounds, all as the serial run");
    sessions.into_iter().try_for_each(Session::free)?;
    model.free()
}

/// Request i on its own thread, with a session that another thread had before.
fn at_once(
    model: &Model,
    sessions: &[Mutex<Session>],
    round: usize,
    gate: &Mutex<()>,
) -> Answer<Vec<Completion>> {
    std::thread::scope(|scope| {
        let work: Vec<_> = (0..sessions.len())
            .map(|i| {
                scope.spawn(move || {
                    let session = sessions[(i + round) % sessions.len()].lock().unwrap();
                    chat::complete(model, &session, &request(i), gate, &mut |_| {})
                })
            })
            .collect();
        work.into_iter().map(|thread| thread.join().expect("a thread that panicked")).collect()
    })
}

/// The same token from every session of one batch as from a batch of its own.
fn batch(model: &Model, sessions: &[Session]) -> Answer<()> {
    let prompts: Answer<Vec<_>> =
        (0..sessions.len()).map(|i| model.tokenize(&format!("{i} and {}", i * i))).collect();
    let prompts = prompts?;
    let prepare = || {
        sessions.iter().zip(&prompts).try_for_each(|(s, p)| s.reset().and_then(|()| s.prefill(p)))
    };
    let mut apart = vec![vec![0]; sessions.len()];
    prepare()?;
    for (session, tokens) in sessions.iter().zip(&mut apart) {
        for step in 0..4 {
            let next = model::decode(&[session], &[tokens[step]], null())?[0];
            tokens.push(next);
        }
    }
    prepare()?;
    let all: Vec<&Session> = sessions.iter().collect();
    let mut tokens = vec![0; sessions.len()];
    for step in 1..5 {
        tokens = model::decode(&all, &tokens, null())?;
        let expected: Vec<i32> = apart.iter().map(|tokens| tokens[step]).collect();
        assert_eq!(tokens, expected, "batch step {step}");
    }
    Ok(())
}
