macro_rules! x { ($($t:ident)*) => {$( #[derive(Debug,Clone,serde::Deserialize)] pub struct $t {} )*} }
x!(Attachment Category Chat ChatLifecycle Expert Message Reference Timestamp User);
