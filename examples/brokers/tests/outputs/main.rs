//! Each output has each event, in the order of its chat, although the program and the output are killed again and again
//! under load.
//!
//! Chats send on threads of their own, whatever a test waits for. A test starts its output itself, on free ports of
//! 127.0.0.1. NATS is a cluster of three servers, RabbitMQ one of three nodes, Temporal its development server, Restate one
//! server, SQS the emulator of `moto`, and Kafka the mock cluster of librdkafka, which is no broker. `tests/slow` installs
//! them all and kills each 12 times (`OUTPUT_KILLS`, by default 3).

mod kafka;
mod load;
mod nats;
mod process;
mod rabbitmq;
mod restate;
mod sqs;
mod temporal;
