//! Owns the two measured text jobs: the host's token inventory, and what the smallest call costs.

use crate::abi::Api;
use crate::calls::Answer;
use crate::model::Model;
use std::ffi::OsStr;
use std::time::Instant;

/// `detok-inventory MODEL N_VOCAB`: every id alone, two calls each; together they are the text.
pub fn inventory(api: &Api, path: &OsStr, n_vocab: i32) -> Answer<()> {
    let model = Model::open(api, path, 1)?;
    let clock = Instant::now();
    let mut pieces = Vec::new();
    for token in 0..n_vocab {
        pieces.extend(model.detokenize(&[token])?);
    }
    let seconds = clock.elapsed().as_secs_f64();
    let all: Vec<i32> = (0..n_vocab).collect();
    assert_eq!(pieces, model.detokenize(&all)?, "pieces of a text are the text");
    let past = model.detokenize(&[n_vocab]).map_err(|e| e.contains(&n_vocab.to_string()));
    assert!(matches!(past, Err(true) | Ok(_)), "an id past the vocabulary");
    println!("{n_vocab} tokens, {} bytes, {seconds:.3} s", pieces.len());
    model.free()
}

/// `noop-cost MODEL`: nanoseconds of one end-of-generation test.
pub fn noop_cost(api: &Api, path: &OsStr) -> Answer<()> {
    const CALLS: u32 = 20_000;
    let model = Model::open(api, path, 1)?;
    let clock = Instant::now();
    for _ in 0..CALLS {
        model.is_eog(0)?;
    }
    println!("{:.0} ns", clock.elapsed().as_nanos() as f64 / f64::from(CALLS));
    model.free()
}
