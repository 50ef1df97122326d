//! What the store asks of a server.

use redis::aio::MultiplexedConnection;
use redis::{
    Cmd, ErrorKind, FromRedisValue, RedisResult, Script, ServerErrorKind, ToRedisArgs, Value,
    from_redis_value,
};

/// A script, with the one key that it touches and its arguments.
pub(super) struct Call<'a> {
    script: &'a Script,
    command: Cmd,
    key: Vec<u8>,
}

impl<'a> Call<'a> {
    pub(super) fn new(script: &'a Script, key: Vec<u8>) -> Self {
        // As much as `claim`, the longest call, takes.
        let mut command = Cmd::with_capacity(8, 256);
        command
            .arg("EVALSHA")
            .arg(script.get_hash())
            .arg(1)
            .arg(&key);
        Self {
            script,
            command,
            key,
        }
    }

    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }
}

/// What is sent on a connection.
pub(super) enum Request<'a> {
    Call(&'a Call<'a>),
    /// A call to the server that a slot is being moved to.
    Asking(&'a Call<'a>),
    Other(&'a Cmd),
}

impl Request<'_> {
    pub(super) async fn send<T: FromRedisValue>(
        &self,
        mut connection: MultiplexedConnection,
    ) -> RedisResult<T> {
        let answer = self.send_once(&mut connection).await;
        match (answer, self) {
            // The server has restarted, or was promoted, and has not executed anything.
            (Err(error), Self::Call(call) | Self::Asking(call))
                if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) =>
            {
                call.script.load_async(&mut connection).await?;
                self.send_once(&mut connection).await
            }
            (answer, _) => answer,
        }
    }

    async fn send_once<T: FromRedisValue>(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<T> {
        match self {
            Self::Call(call) => call.command.query_async(connection).await,
            Self::Other(command) => command.query_async(connection).await,
            Self::Asking(call) => {
                // Nothing comes between the two, although the connection is shared.
                let mut both = redis::pipe();
                both.cmd("ASKING").add_command(call.command.clone());
                // Otherwise the error would not say where the key is.
                both.ignore_errors();
                let (asking, answer): (Value, Value) = both.query_async(connection).await?;
                asking.extract_error()?;
                Ok(from_redis_value(answer.extract_error()?)?)
            }
        }
    }
}
