//! A request as it arrives: any headers, and a body in pieces.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) steps: Vec<Step>,
    /// Whether the body tells its size before it is read.
    pub(crate) exact_size_known: bool,
}

#[derive(Clone)]
pub(crate) enum Step {
    Data(Bytes),
    Wait(Duration),
    Trailers,
    Break,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(data) if data.len() > 2000 => write!(f, "Data({} bytes)", data.len()),
            Self::Data(data) => write!(f, "Data({data:?})"),
            Self::Wait(time) => write!(f, "Wait({time:?})"),
            Self::Trailers => f.write_str("Trailers"),
            Self::Break => f.write_str("Break"),
        }
    }
}

impl Request {
    pub(crate) fn all(&self, name: &str) -> Vec<&[u8]> {
        let headers = self.headers.iter();
        headers
            .filter(|(other, _)| other == name)
            .map(|(_, value)| value.as_bytes())
            .collect()
    }

    pub(crate) fn size(&self) -> usize {
        let data = self.steps.iter().map(|step| match step {
            Step::Data(data) => data.len(),
            _ => 0,
        });
        data.sum()
    }

    pub(crate) fn without_pauses(&self) -> Self {
        let mut request = self.clone();
        let is_pause = |step: &Step| matches!(step, Step::Wait(_));
        request.steps.retain(|step| !is_pause(step));
        request
    }

    pub(crate) fn to_http(&self) -> http::Request<Pieces> {
        let mut request = http::Request::new(Pieces {
            steps: self.steps.clone().into(),
            waiting: None,
            size: self.exact_size_known.then(|| self.size()),
        });
        *request.method_mut() = Method::from_bytes(self.method.as_bytes()).expect("a method");
        for (name, value) in &self.headers {
            request.headers_mut().append(name, value.clone());
        }
        request
    }
}

pub(crate) struct Pieces {
    steps: VecDeque<Step>,
    waiting: Option<Pin<Box<Sleep>>>,
    /// What is still to come, if that is told.
    size: Option<usize>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        loop {
            if let Some(waiting) = &mut self.waiting {
                ready!(waiting.as_mut().poll(cx));
                self.waiting = None;
            }
            match self.steps.pop_front() {
                Some(Step::Wait(time)) => self.waiting = Some(Box::pin(sleep(time))),
                Some(Step::Data(data)) => {
                    self.size = self.size.map(|size| size - data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Step::Trailers) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::new()))));
                }
                Some(Step::Break) => return Poll::Ready(Some(Err(Broken))),
                None => return Poll::Ready(None),
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self.size {
            Some(size) => SizeHint::with_exact(size as u64),
            None => SizeHint::default(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection broke")
    }
}

impl std::error::Error for Broken {}
