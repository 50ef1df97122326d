//! Chats and events that are generated from a seed.

use fastrand::Rng;
use tower_webhook::event::{Attachment, Message};

use super::chat::SimulatedChat;
use super::invent::pick;
use super::payload::{Rating, Step};
use super::platform::Sandbox;
use super::report::EventId;

/// Creates random chats and events, one event at a time. See [`Sandbox::generator`].
#[derive(Debug)]
pub struct Generator {
    sandbox: Sandbox,
    rng: Rng,
    chats: Vec<(SimulatedChat, Phase)>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Assigned,
    Open,
    Resolved,
}

impl Generator {
    /// Creates the next event: in a new chat, or in a chat without a rating.
    pub fn step(&mut self) -> EventId {
        loop {
            if let Some(event) = self.try_step() {
                return event;
            }
        }
    }

    /// Returns `None` if it chose a chat that was rated in the meantime, which it then forgets.
    fn try_step(&mut self) -> Option<EventId> {
        let rng = &mut self.rng;
        if self.chats.is_empty() || rng.u8(..6) == 0 {
            let chat = self.sandbox.chat();
            let event = chat.assign();
            self.chats.push((chat, Phase::Assigned));
            return Some(event);
        }
        let index = rng.usize(..self.chats.len());
        let (chat, phase) = &mut self.chats[index];
        Some(match phase {
            Phase::Assigned => {
                *phase = Phase::Open;
                chat.open()
            }
            Phase::Open => {
                let (event, is_resolved) = go_on(rng, chat);
                if is_resolved {
                    *phase = Phase::Resolved;
                }
                event
            }
            Phase::Resolved => {
                let reopens = rng.u8(..4) == 0;
                let step = match reopens {
                    true => Step::Reopen,
                    false => Step::Rate(pick(rng, &[Rating::Bad, Rating::Fair, Rating::Good])),
                };
                let event = chat.step_if_unrated(step);
                if reopens && event.is_some() {
                    *phase = Phase::Open;
                } else {
                    self.chats.swap_remove(index);
                }
                return event;
            }
        })
    }
}

/// Takes the next step in an open chat, and returns whether that resolves it.
fn go_on(rng: &mut Rng, chat: &SimulatedChat) -> (EventId, bool) {
    match rng.u8(..8) {
        0 => (chat.transfer(), true),
        1 | 2 => (chat.close(), true),
        3 => {
            let receipt = Attachment::default()
                .url("https://files.example.com/receipt.pdf".to_owned())
                .filename("receipt.pdf".to_owned())
                .mimetype("application/pdf".to_owned());
            let message = Message::default()
                .text("Here is the receipt 🧾".to_owned())
                .attachment(receipt);
            (chat.send(message), false)
        }
        4 | 5 => (chat.message("And when will that be?"), false),
        _ => (chat.reply("I am looking into it."), false),
    }
}

impl Sandbox {
    /// Returns a generator of random chats and events, which starts from the [seed](super::Settings::seed).
    ///
    /// ```
    /// # use tower_webhook_sandbox::{Body, Sandbox, Webhook};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
    /// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
    /// # });
    /// let sandbox = Sandbox::in_process(receiver);
    /// sandbox.configure_all(&Webhook::new("/webhooks"));
    /// let mut generator = sandbox.generator();
    /// for _ in 0..20 {
    ///     generator.step();
    /// }
    /// let report = sandbox.finish().await;
    /// assert!(report.is_all_delivered(), "{report}");
    /// # }
    /// ```
    #[must_use]
    pub fn generator(&self) -> Generator {
        Generator {
            sandbox: self.clone(),
            rng: Rng::with_seed(self.shared.settings.seed),
            chats: Vec::new(),
        }
    }
}
