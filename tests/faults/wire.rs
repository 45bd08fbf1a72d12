//! The way from an agent to the service, which something happens to at a moment that a test names.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How much of what went by is kept to see a sign that comes in two pieces, in bytes.
const SHORTER_THAN_A_SIGN: usize = 9;

/// How long it takes at most until a step comes: an agent that was often cut off dials again after
/// a minute.
const SPRUNG_WITHIN: Duration = Duration::from_secs(180);

/// Which way something goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the agent.
    ToService,
    /// To the agent.
    ToAgent,
}

/// How much of what goes by has passed when it happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Nothing of it.
    Before,
    /// Half of it.
    Half,
    /// All of it.
    After,
    /// All of it, and nothing of the answer to it, which has come.
    Answered,
}

/// A step of a command's.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// What it is called.
    pub name: &'static str,
    /// Which way it goes.
    pub way: Way,
    /// What it is known by: ten bytes at least.
    pub sign: &'static str,
    /// The moment.
    pub moment: Moment,
}

/// What happens, beside that the connection is cut.
type Act = Box<dyn FnOnce() + Send>;

/// A step that is waited for.
struct Trap {
    step: Step,
    act: Act,
}

/// A listener that carries connections to the service. It ends with this.
pub struct Wire {
    /// Where it listens.
    pub port: u16,
    trap: Arc<Mutex<Option<Trap>>>,
    sprung: watch::Receiver<u32>,
    cuts: watch::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Wire {
    /// Listens, for a service at a port.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let trap = Arc::new(Mutex::new(None));
        let (springs, sprung) = watch::channel(0);
        let cuts = watch::Sender::new(());
        let (shared, cut) = (trap.clone(), cuts.subscribe());
        let task = tokio::spawn(async move {
            // They end with this task.
            let mut carried = tokio::task::JoinSet::new();
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let (trap, springs) = (shared.clone(), springs.clone());
                let mut cut = cut.clone();
                cut.mark_unchanged();
                carried.spawn(async move {
                    // A service that is not there is for the agent to find out.
                    let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                    let connection = Connection {
                        near,
                        far,
                        trap,
                        springs,
                        tail: Default::default(),
                        awaited: None,
                    };
                    tokio::select! {
                        () = connection.carry() => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { port: own_port, trap, sprung, cuts, task }
    }

    /// At the next time that something comes to a step, its connection is cut there, after `act`
    /// was done.
    pub fn set(&self, step: Step, act: impl FnOnce() + Send + 'static) {
        *self.trap.lock().unwrap() = Some(Trap { step, act: Box::new(act) });
    }

    /// How often that happened.
    pub fn times(&self) -> u32 {
        *self.sprung.borrow()
    }

    /// Waits until it has happened more often.
    pub async fn until_more_than(&self, times: u32) {
        let mut sprung = self.sprung.clone();
        let sprung = sprung.wait_for(|sprung| *sprung > times);
        tokio::time::timeout(SPRUNG_WITHIN, sprung)
            .await
            .expect("nothing came to the step")
            .unwrap();
    }

    /// Cuts what is connected now.
    pub fn cut(&self) {
        self.cuts.send_replace(());
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection that is carried.
struct Connection {
    near: TcpStream,
    far: TcpStream,
    trap: Arc<Mutex<Option<Trap>>>,
    springs: watch::Sender<u32>,
    /// The last bytes of either way, as a sign may come in two pieces.
    tail: [Vec<u8>; 2],
    /// What happens with the next answer.
    awaited: Option<Act>,
}

impl Connection {
    async fn carry(mut self) {
        let (mut upward, mut downward) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
        loop {
            let (way, read) = tokio::select! {
                read = self.near.read(&mut upward) => (Way::ToService, read),
                read = self.far.read(&mut downward) => (Way::ToAgent, read),
            };
            let (buffer, to) = match way {
                Way::ToService => (&upward, &mut self.far),
                Way::ToAgent => (&downward, &mut self.near),
            };
            let bytes = &buffer[..read.unwrap_or(0)];
            if bytes.is_empty() {
                to.shutdown().await.ok();
                return;
            }
            if way == Way::ToAgent
                && let Some(act) = self.awaited.take()
            {
                return self.spring(act);
            }
            let tail = &mut self.tail[usize::from(way == Way::ToAgent)];
            tail.extend_from_slice(bytes);
            let trap = self.trap.lock().unwrap().take_if(|trap| {
                trap.step.way == way
                    && tail
                        .windows(trap.step.sign.len())
                        .any(|window| window == trap.step.sign.as_bytes())
            });
            // Shorter than any sign, so that none is seen twice.
            tail.drain(..tail.len().saturating_sub(SHORTER_THAN_A_SIGN));
            let passes = match trap.as_ref().map(|trap| trap.step.moment) {
                Some(Moment::Before) => 0,
                Some(Moment::Half) => bytes.len() / 2,
                _ => bytes.len(),
            };
            if to.write_all(&bytes[..passes]).await.is_err() {
                return;
            }
            match trap {
                Some(Trap { step: Step { moment: Moment::Answered, .. }, act }) => {
                    self.awaited = Some(act)
                }
                Some(Trap { act, .. }) => return self.spring(act),
                None => {}
            }
        }
    }

    /// Does what was to be done, and breaks both sides off.
    fn spring(self, act: Act) {
        act();
        // Without a word, as when a host is gone.
        self.near.set_zero_linger().ok();
        self.far.set_zero_linger().ok();
        drop((self.near, self.far));
        self.springs.send_modify(|times| *times += 1);
    }
}
