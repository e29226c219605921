//! The class `Stream`: pieces of an answer, for `for` and `async for`.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bitnet::{Error, Piece, Pieces, Request, Stream as _};
use pyo3::{exceptions::PyStopAsyncIteration, prelude::*, types::PyTuple};

use crate::{
    answer::Answer,
    bridge::Bridge,
    errors::{raised, unusable},
    process::Mine,
    wait::wait,
};

/// The pieces of an answer as it is generated: an iterator, and an async iterator in an asyncio event loop. `await`
/// gives the whole answer. Closing or dropping it cancels the request.
#[pyclass(frozen, module = "bitnet")]
pub(crate) struct Stream {
    state: Mine<Mutex<State>>,
    bridge: Bridge,
    /// Whether the pieces of thoughts are given too.
    thoughts: bool,
}

enum State {
    /// The request waits for room in the queue.
    Starting(Pin<Box<dyn Future<Output = Result<Pieces, Error>> + Send>>),
    Running(Pieces),
    Ended(Answer),
    /// Closed, or failed.
    Closed,
}

impl Stream {
    /// Submits a request; raises if it is invalid.
    pub(crate) fn start(
        py: Python<'_>,
        model: bitnet::Model,
        request: Request,
        bridge: Bridge,
        thoughts: bool,
    ) -> PyResult<Stream> {
        let mut starting = Box::pin(async move { model.stream_async(request).await });
        let state = match py.detach(|| starting.as_mut().poll(&mut Context::from_waker(Waker::noop()))) {
            Poll::Ready(Ok(pieces)) => State::Running(pieces),
            Poll::Ready(Err(error)) => return Err(raised(py, &error)),
            Poll::Pending => State::Starting(starting),
        };
        Ok(Stream { state: Mine::new(Mutex::new(state)), bridge, thoughts })
    }

    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, State>> {
        Ok(lock(self.state.get(py)?))
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// The next piece; those of thoughts only if they are wanted.
    fn poll(&mut self, cx: &mut Context<'_>, thoughts: bool) -> Poll<Option<Result<Piece, Error>>> {
        loop {
            let polled = match self {
                State::Starting(starting) => match ready!(starting.as_mut().poll(cx)) {
                    Ok(pieces) => {
                        *self = State::Running(pieces);
                        continue;
                    }
                    Err(error) => Some(Err(error)),
                },
                State::Running(pieces) => ready!(Pin::new(pieces).poll_next(cx)),
                State::Ended(_) | State::Closed => return Poll::Ready(None),
            };
            match &polled {
                Some(Ok(Piece::Thought(_))) if !thoughts => continue,
                Some(Ok(_)) => {}
                Some(Err(_)) => *self = State::Closed,
                None => *self = mem::replace(self, State::Closed).ended(),
            }
            return Poll::Ready(polled);
        }
    }

    /// The state after the last piece.
    fn ended(self) -> State {
        let State::Running(pieces) = self else { return State::Closed };
        // Nothing is left to wait for.
        match pin!(pieces.answer_async()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(answer)) => State::Ended(answer.into()),
            _ => State::Closed,
        }
    }
}

/// A piece as Python gets it: a text, or for a thought a text of the class `Thought`.
fn given(py: Python<'_>, piece: Result<Piece, Error>) -> PyResult<Bound<'_, PyAny>> {
    let piece = piece.map_err(|error| raised(py, &error))?;
    match &piece {
        Piece::Thought(thought) => py.import("bitnet")?.getattr("Thought")?.call1((thought,)),
        text => Ok(text.text().into_pyobject(py)?.into_any()),
    }
}

#[pymethods]
impl Stream {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let state = self.state.get(py)?;
        let piece = wait(py, poll_fn(|cx| lock(state).poll(cx, self.thoughts)))
            .inspect_err(|_| *lock(state) = State::Closed)?;
        piece.map(|piece| given(py, piece)).transpose()
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        slf.py().import("bitnet")?.call_method1("_next_piece", (slf,))
    }

    fn __await__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let py = slf.py();
        py.import("bitnet")?.call_method1("_whole_answer", (slf,))?.call_method0("__await__")
    }

    /// Returns the next piece if there is one, otherwise `None`, and then calls `wake` once from another thread when it
    /// is worth asking again.
    fn _poll<'py>(&self, py: Python<'py>, wake: Py<PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let waker = self.bridge.waker(wake);
        let state = self.state.get(py)?;
        match py.detach(|| lock(state).poll(&mut Context::from_waker(&waker), self.thoughts)) {
            Poll::Ready(Some(piece)) => given(py, piece).map(Some),
            Poll::Ready(None) => Err(PyStopAsyncIteration::new_err(())),
            Poll::Pending => Ok(None),
        }
    }

    /// Waits for the end and returns the whole answer, including pieces already taken.
    fn answer(&self, py: Python<'_>) -> PyResult<Answer> {
        while self.__next__(py)?.is_some() {}
        match &*self.lock(py)? {
            State::Ended(answer) => Ok(answer.clone()),
            _ => Err(unusable(py, "the stream was closed before its end (stream)", "send the request again")),
        }
    }

    /// Cancels the request. The stream then has no more pieces.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.lock(py)?;
        if !matches!(*state, State::Ended(_)) {
            *state = State::Closed;
        }
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}
