//! The mock cluster of librdkafka: its protocol, in memory, and no broker.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use crate::load::{Event, Output, survive};

const TOPIC: &str = "webhooks";
const BROKERS: i32 = 3;
const PARTITIONS: i32 = 3;
const LIMIT: Duration = Duration::from_secs(60);

struct Kafka {
    cluster: MockCluster<'static, DefaultProducerContext>,
    /// The broker that is down, or was last.
    down: i32,
}

impl Kafka {
    fn start() -> Self {
        let cluster = MockCluster::new(BROKERS).unwrap();
        cluster.create_topic(TOPIC, PARTITIONS, BROKERS).unwrap();
        let kafka = Self { cluster, down: 0 };
        kafka.lead();
        kafka
    }

    /// Divides the partitions among the brokers that are up, whose numbers begin with 1.
    fn lead(&self) {
        let up = (1..=BROKERS).filter(|broker| *broker != self.down);
        for (partition, broker) in (0..PARTITIONS).zip(up.cycle()) {
            let led = self
                .cluster
                .partition_leader(TOPIC, partition, Some(broker));
            led.unwrap();
        }
    }
}

impl Output for Kafka {
    const PROGRAM: &'static str = env!("CARGO_BIN_EXE_kafka");

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("KAFKA", self.cluster.bootstrap_servers())]
    }

    /// Ends the connections of a broker, whose partitions others lead.
    async fn kill(&mut self) {
        self.down = self.down % BROKERS + 1;
        self.cluster.broker_down(self.down).unwrap();
        self.lead();
    }

    async fn mend(&mut self) {
        if self.down > 0 {
            self.cluster.broker_up(self.down).unwrap();
        }
    }

    async fn read(&mut self, _sent: usize) -> Vec<Event> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", self.cluster.bootstrap_servers())
            .set("group.id", "test")
            .create()
            .unwrap();
        let (mut assigned, mut count) = (TopicPartitionList::new(), 0);
        for partition in 0..PARTITIONS {
            let (first, end) = consumer.fetch_watermarks(TOPIC, partition, LIMIT).unwrap();
            assert_eq!(first, 0, "the mock has dropped messages");
            let from = assigned.add_partition_offset(TOPIC, partition, Offset::Beginning);
            from.unwrap();
            count += end;
        }
        consumer.assign(&assigned).unwrap();
        let mut events = Vec::new();
        for _ in 0..count {
            let message = consumer.poll(LIMIT).unwrap().unwrap();
            events.push(Event::of_body(message.payload().unwrap()));
        }
        events
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_has_each_event_at_least_once_in_the_order_of_its_chat() {
    survive(Kafka::start()).await.assert_at_least_once();
}
