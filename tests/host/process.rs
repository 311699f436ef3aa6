//! Owns what a guest must leave alone: the state of the process, and how it ends.
//!
//! Each case is one process. The parent judges the exit; what can be compared is compared here.

use crate::abi::Api;
use crate::calls::Answer;
use crate::chat::{self, Request};
use crate::loader::Loaded;
use crate::model::Model;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void, CStr, OsStr, OsString};
use std::io::Write;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::time::Duration;

/// The layout of 64-bit Linux. Of the mask only the first word is real.
#[repr(C)]
struct SigAction {
    handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

extern "C" {
    fn sigaction(signal: c_int, new: *const SigAction, old: *mut SigAction) -> c_int;
    fn signal(signal: c_int, handler: usize) -> usize;
    fn pthread_sigmask(how: c_int, new: *const [u64; 16], old: *mut [u64; 16]) -> c_int;
    fn setlocale(category: c_int, locale: *const c_char) -> *const c_char;
    fn fegetround() -> c_int;
    fn fesetround(mode: c_int) -> c_int;
    fn umask(mask: u32) -> u32;
    fn sigaltstack(new: *const c_void, old: *mut [usize; 3]) -> c_int;
    fn getrlimit(resource: c_int, limits: *mut [u64; 2]) -> c_int;
    fn prctl(option: c_int, ...) -> c_int;
    fn kill(pid: c_int, signal: c_int) -> c_int;
    fn exit(code: c_int) -> !;
    fn _exit(code: c_int) -> !;
    fn close(descriptor: c_int) -> c_int;
    fn fcntl(descriptor: c_int, command: c_int, ...) -> c_int;
}

const LC_ALL: c_int = 6;
const F_GETFD: c_int = 1;
const SIGINT: c_int = 2;
const SIGPIPE: c_int = 13;
const SIG_BLOCK: c_int = 0;
const LEFT: c_int = 3;
// The C library sets it on every signal that it writes, back to the default too.
const SA_RESTORER: c_int = 0x0400_0000;
#[cfg(target_arch = "x86_64")]
const FE_DOWNWARD: c_int = 0x400;
#[cfg(not(target_arch = "x86_64"))]
const FE_DOWNWARD: c_int = 0x800000;

extern "C" fn on_signal(_: c_int) {}

/// Everything about the process that a library could change, by name.
fn snapshot() -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    let mut put = |name: &str, value: String| seen.insert(name.to_string(), value);
    unsafe {
        for number in (1..32).chain(34..65) {
            let mut action: SigAction = std::mem::zeroed();
            sigaction(number, null(), &mut action);
            let name = format!("signal {number}");
            put(
                &name,
                format!(
                    "{:#x} {:x} {:x}",
                    action.handler,
                    action.mask[0],
                    action.flags & !SA_RESTORER
                ),
            );
        }
        let mut mask = [0; 16];
        pthread_sigmask(SIG_BLOCK, null(), &mut mask);
        put("signal mask", format!("{mask:x?}"));
        let mut stack = [0; 3];
        sigaltstack(null(), &mut stack);
        put("signal stack", format!("{stack:x?}"));
        put("locale", CStr::from_ptr(setlocale(LC_ALL, null())).to_string_lossy().into_owned());
        put("rounding", fegetround().to_string());
        let mask = umask(0);
        umask(mask);
        put("umask", format!("{mask:o}"));
        for resource in 0..16 {
            let mut limits = [0; 2];
            getrlimit(resource, &mut limits);
            put(&format!("limit {resource}"), format!("{limits:?}"));
        }
        for (option, name) in
            [(2, "death signal"), (3, "dumpable"), (21, "seccomp"), (39, "privileges")]
        {
            let mut value = 0 as c_int;
            // Two of the options answer through the pointer, two by the result.
            let result = match option == 2 {
                true => prctl(option, &mut value as *mut c_int),
                false => prctl(option, 0usize, 0usize, 0usize, 0usize),
            };
            put(name, format!("{result} {value}"));
        }
        let mut thread_name = [0u8; 16];
        prctl(16, thread_name.as_mut_ptr());
        put("thread name", format!("{thread_name:?}"));
    }
    // A denormal that counts as zero: the mode that fast-math libraries leave behind.
    put("denormals", format!("{}", std::hint::black_box(f64::MIN_POSITIVE) / 4.0 > 0.0));
    put("descriptors", descriptors());
    put("folder", format!("{:?}", std::env::current_dir().ok()));
    put("environment", format!("{:?}", std::env::vars_os().collect::<Vec<_>>()));
    seen
}

/// Every open descriptor and what it is of, without the one that reads the list.
fn descriptors() -> String {
    let entries = std::fs::read_dir("/proc/self/fd").expect("the process's descriptors");
    let mut open: Vec<_> = entries
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| !target.starts_with("/proc"))
        .collect();
    open.sort();
    format!("{open:?}")
}

fn answer(model: &Model) -> Answer<usize> {
    let session = model.session()?;
    let request = Request::greedy("Say something.", 8);
    let done = chat::complete(model, &session, &request, &Mutex::new(()), &mut |_| {})?;
    session.free()?;
    Ok(done.tokens.len())
}

fn work(model: &Model, n_prefill: usize) -> Answer<()> {
    if n_prefill == 0 {
        return answer(model).map(drop);
    }
    let session = model.session()?;
    session.prefill(&vec![1; n_prefill])?;
    session.free()
}

/// `process MODEL reopen`: what a model took is given back by the time that its free call returns.
pub fn reopen(api: &Api, path: &OsStr) -> Answer<()> {
    Model::open(api, path, 1)?.free()?;
    let before = descriptors();
    for round in 0..8 {
        let model = Model::open(api, path, 1)?;
        answer(&model)?;
        model.free()?;
        match descriptors() {
            after if after == before => {}
            after => println!("round {round}: {before} -> {after}"),
        }
    }
    println!("8 times, the same descriptors");
    Ok(())
}

/// `process MODEL born`: loaded and opened on a thread that is gone when the answer is asked for.
pub fn born(libraries: Vec<OsString>, path: &OsStr) -> Answer<()> {
    let path = path.to_os_string();
    let starter = std::thread::spawn(move || -> Answer<Model<'static>> {
        let loaded = Loaded::open(libraries)?;
        Model::open(Box::leak(Box::new(Api::of(&loaded)?)), &path, 1)
    });
    let model = starter.join().expect("the starting thread")?;
    println!("{} tokens", answer(&model)?);
    model.free()
}

/// Loads, opens, answers on this thread and on another, closes.
fn whole_job(libraries: Vec<OsString>, path: &OsStr) -> Answer<()> {
    let loaded = Loaded::open(libraries)?;
    loaded.resolve()?;
    let api = Api::of(&loaded)?;
    chat::start(&api)?;
    let model = Model::open(&api, path, 2)?;
    answer(&model)?;
    std::thread::scope(|scope| scope.spawn(|| answer(&model)).join().unwrap())?;
    model.free()
}

/// `process MODEL state`: in a state that no library would choose, before the load and after.
pub fn state(libraries: Vec<OsString>, path: &OsStr) -> Answer<()> {
    unsafe {
        // Rust ignores it; the default shows a library that ignores it, too.
        signal(SIGPIPE, 0);
        signal(10, on_signal as *const () as usize);
        let blocked = [1 << 11; 16];
        pthread_sigmask(SIG_BLOCK, &blocked, null_mut());
        umask(0o027);
        fesetround(FE_DOWNWARD);
    }
    let before = snapshot();
    whole_job(libraries, path)?;
    let after = snapshot();
    for (name, value) in &before {
        if &after[name] != value {
            println!("changed: {name}: {value} -> {}", after[name]);
        }
    }
    println!("{} compared", before.len());
    Ok(())
}

/// `process MODEL closed`: without standard descriptors from before the load. The code tells.
pub fn closed(libraries: Vec<OsString>, path: &OsStr) -> Answer<()> {
    for descriptor in 0..3 {
        unsafe { close(descriptor) };
    }
    let loaded = Loaded::open(libraries)?;
    let api = Api::of(&loaded)?;
    let model = Model::open(&api, path, 1)?;
    let answered = answer(&model);
    let taken = (0..3).find(|&d| unsafe { fcntl(d, F_GETFD) } != -1);
    unsafe {
        _exit(match (answered, taken) {
            (Ok(1..), None) => 40,
            (Ok(1..), Some(descriptor)) => 50 + descriptor,
            _ => 41,
        })
    }
}

/// `process MODEL HOW [N_PREFILL]`: one thread decodes without end, or runs prompts of that many
/// tokens, while the process is left in a way.
pub fn leave(api: &'static Api, path: &OsStr, how: &str, n_prefill: usize) -> Answer<()> {
    let model: &'static Model = Box::leak(Box::new(Model::open(api, path, 1)?));
    let (told, started) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        answer(model).expect("a first answer");
        told.send(()).expect("somebody listens");
        // Ends quietly at the refusal of a process that is exiting.
        while work(model, n_prefill).is_ok() {}
    });
    started.recv().expect("a first answer");
    std::thread::sleep(Duration::from_millis(30));
    println!("leaving");
    std::io::stdout().flush().expect("standard output");
    match how {
        "return" => return Err(String::new()),
        "exit" => drop(std::thread::spawn(|| unsafe { exit(LEFT) })),
        "_exit" => drop(std::thread::spawn(|| unsafe { _exit(LEFT) })),
        "interrupt" => drop(unsafe { kill(std::process::id() as c_int, SIGINT) }),
        other => return Err(format!("no way to leave: {other}")),
    }
    std::thread::sleep(Duration::from_secs(60));
    Err("still here after a minute".into())
}
