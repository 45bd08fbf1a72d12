//! A proxy between an agent and the service that cuts a connection at a chosen point of a command.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Time limit for a step to occur. An agent that was often cut off waits up to a minute before it
/// reconnects.
const STEP_TIMEOUT: Duration = Duration::from_secs(180);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    ToService,
    ToAgent,
}

/// How much of a message is forwarded before the cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutPoint {
    /// Nothing.
    Before,
    /// Half of it.
    Half,
    /// All of it.
    After,
    /// All of it. The cut happens when the response arrives, which is not forwarded.
    Answered,
}

/// A point in the traffic of a command.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// A name for assertion messages.
    pub name: &'static str,
    pub direction: Direction,
    /// The text that identifies the message.
    pub pattern: &'static str,
    pub cut_point: CutPoint,
}

/// What else happens at the cut.
type Action = Box<dyn FnOnce() + Send>;

/// The step that the proxy waits for.
struct ArmedStep {
    step: Step,
    action: Action,
}

/// A listener that forwards connections to the service. Dropping it stops the proxy.
pub struct Proxy {
    /// The port that agents connect to.
    pub port: u16,
    armed: Arc<Mutex<Option<ArmedStep>>>,
    triggered: watch::Receiver<u32>,
    cuts: watch::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy for a service on a port.
    pub async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let armed = Arc::new(Mutex::new(None));
        let (triggers, triggered) = watch::channel(0);
        let cuts = watch::Sender::new(());
        let (shared, cut) = (armed.clone(), cuts.subscribe());
        let task = tokio::spawn(async move {
            // Dropping this set, with the task, ends the connections.
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (agent, _) = listener.accept().await.unwrap();
                let (armed, triggers) = (shared.clone(), triggers.clone());
                let mut cut = cut.clone();
                cut.mark_unchanged();
                connections.spawn(async move {
                    // If the service is down, the agent sees a closed connection.
                    let Ok(service) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                    let connection = ProxiedConnection {
                        agent,
                        service,
                        armed,
                        triggers,
                        tail: Default::default(),
                        on_response: None,
                    };
                    tokio::select! {
                        () = connection.forward() => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { port: own_port, armed, triggered, cuts, task }
    }

    /// At the next occurrence of a step, executes `action` and cuts that connection.
    pub fn arm(&self, step: Step, action: impl FnOnce() + Send + 'static) {
        *self.armed.lock().unwrap() = Some(ArmedStep { step, action: Box::new(action) });
    }

    /// How many times a step has occurred.
    pub fn triggered(&self) -> u32 {
        *self.triggered.borrow()
    }

    /// Waits until steps have occurred more than `times` times.
    pub async fn wait_for_more_than(&self, times: u32) {
        let mut triggered = self.triggered.clone();
        let triggered = triggered.wait_for(|triggered| *triggered > times);
        if tokio::time::timeout(STEP_TIMEOUT, triggered).await.is_err() {
            let armed = self.armed.lock().unwrap().as_ref().map(|armed| armed.step);
            panic!("the step did not occur in time: {armed:?}");
        }
    }

    /// Cuts all open connections.
    pub fn cut(&self) {
        self.cuts.send_replace(());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A forwarded connection.
struct ProxiedConnection {
    agent: TcpStream,
    service: TcpStream,
    armed: Arc<Mutex<Option<ArmedStep>>>,
    triggers: watch::Sender<u32>,
    /// The last forwarded bytes of each direction. A pattern may arrive in two pieces.
    tail: [Vec<u8>; 2],
    /// Cut when the next response arrives.
    on_response: Option<ArmedStep>,
}

impl ProxiedConnection {
    async fn forward(mut self) {
        let (mut from_agent, mut from_service) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
        loop {
            let (direction, read) = tokio::select! {
                read = self.agent.read(&mut from_agent) => (Direction::ToService, read),
                read = self.service.read(&mut from_service) => (Direction::ToAgent, read),
            };
            let (buffer, to) = match direction {
                Direction::ToService => (&from_agent, &mut self.service),
                Direction::ToAgent => (&from_service, &mut self.agent),
            };
            let bytes = &buffer[..read.unwrap_or(0)];
            if bytes.is_empty() {
                to.shutdown().await.ok();
                return self.arm_again();
            }
            if direction == Direction::ToAgent
                && let Some(ArmedStep { action, .. }) = self.on_response.take()
            {
                return self.trigger(action);
            }
            let tail = &mut self.tail[usize::from(direction == Direction::ToAgent)];
            tail.extend_from_slice(bytes);
            let armed = self.armed.lock().unwrap().take_if(|armed| {
                armed.step.direction == direction
                    && tail
                        .windows(armed.step.pattern.len())
                        .any(|window| window == armed.step.pattern.as_bytes())
            });
            // The remaining bytes are shorter than the pattern, so it is not found twice.
            let kept =
                self.armed.lock().unwrap().as_ref().map_or(0, |armed| armed.step.pattern.len() - 1);
            tail.drain(..tail.len().saturating_sub(kept));
            let forwarded = match armed.as_ref().map(|armed| armed.step.cut_point) {
                Some(CutPoint::Before) => 0,
                Some(CutPoint::Half) => bytes.len() / 2,
                _ => bytes.len(),
            };
            let is_written = to.write_all(&bytes[..forwarded]).await.is_ok();
            match armed {
                Some(armed) if armed.step.cut_point == CutPoint::Answered => {
                    self.on_response = Some(armed);
                }
                Some(ArmedStep { action, .. }) => return self.trigger(action),
                None => {}
            }
            if !is_written {
                return self.arm_again();
            }
        }
    }

    /// The connection has ended before the response: a busy machine made the agent give up. The
    /// step occurs at the agent's next attempt.
    fn arm_again(self) {
        if let Some(armed) = self.on_response {
            self.armed.lock().unwrap().get_or_insert(armed);
        }
    }

    /// Executes the action and cuts both sides.
    fn trigger(self, action: Action) {
        action();
        // Resets the connections instead of closing them, like a host that fails.
        self.agent.set_zero_linger().ok();
        self.service.set_zero_linger().ok();
        drop((self.agent, self.service));
        self.triggers.send_modify(|times| *times += 1);
    }
}
