//! Implementations that many types have alike.

/// Implements `Debug` by the fields after the type, and shows that there are others:
/// `partial_debug!([B: Debug] Answer<B>, |it| body = it.body);`
macro_rules! partial_debug {
    (
        $([$($generics:tt)*])? $Type:ident $(<$($parameter:ident),*>)?
        $(, |$it:ident| $($field:ident = $value:expr),*)?
    ) => {
        impl $(<$($generics)*>)? ::std::fmt::Debug for $Type $(<$($parameter),*>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $(let $it = self;)?
                f.debug_struct(stringify!($Type))
                    $($(.field(stringify!($field), &$value))*)?
                    .finish_non_exhaustive()
            }
        }
    };
}

/// Defines a trait of which `Arc<T>` is an implementor wherever `T` is one. The future of each `async fn` is `Send`.
macro_rules! also_for_arc {
    ($(#[$meta:meta])* $vis:vis trait $Trait:ident: Send + Sync + 'static {
        $(#[$of_constant:meta])* const $CONSTANT:ident: bool;
        $($(#[$of_method:meta])*
        async fn $method:ident(&self $(, $argument:ident: $type:ty)* $(,)?) -> $Output:ty;)+
    }) => {
        $(#[$meta])*
        $vis trait $Trait: Send + Sync + 'static {
            $(#[$of_constant])* const $CONSTANT: bool;
            $($(#[$of_method])* fn $method(
                &self $(, $argument: $type)*
            ) -> impl ::std::future::Future<Output = $Output> + Send;)+
        }

        impl<T: $Trait> $Trait for ::std::sync::Arc<T> {
            const $CONSTANT: bool = T::$CONSTANT;
            $(fn $method(
                &self $(, $argument: $type)*
            ) -> impl ::std::future::Future<Output = $Output> + Send {
                T::$method(self $(, $argument)*)
            })+
        }
    };
}

/// Implements `Display` by one message for each pattern of a type.
macro_rules! messages {
    ($Type:ident { $($(#[$cfg:meta])* $pattern:pat => $message:literal $(, $argument:expr)*;)+ }) => {
        impl ::std::fmt::Display for $Type {
            #[allow(unused_variables, reason = "a cause may be no part of the message")]
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match self {
                    $($(#[$cfg])* $pattern => write!(f, $message $(, $argument)*),)+
                }
            }
        }
    };
}

/// Implements `Error` by one message for each pattern of a type, and the cause after it, if it has one.
macro_rules! errors {
    (@source) => { None };
    (@source $source:expr) => { Some($source) };
    ($Type:ident {
        $($(#[$cfg:meta])* $pattern:pat => $message:literal $(, $argument:expr)* $(=> $source:expr)?;)+
    }) => {
        messages! { $Type { $($(#[$cfg])* $pattern => $message $(, $argument)*;)+ } }

        impl ::std::error::Error for $Type {
            #[allow(unused_variables, reason = "what the message shows")]
            fn source(&self) -> Option<&(dyn ::std::error::Error + 'static)> {
                match self {
                    $($(#[$cfg])* $pattern => errors!(@source $($source)?),)+
                }
            }
        }
    };
}

/// Implements `Display` by one text: `display!(Fault, |it| it.name());`
macro_rules! display {
    ($Type:ident, |$it:ident| $text:expr) => {
        impl ::std::fmt::Display for $Type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let $it = self;
                f.write_str($text)
            }
        }
    };
}

/// Implements `Display` and `FromStr` as those of the number in a type.
macro_rules! number {
    ($($Type:ident),+) => {$(
        impl ::std::fmt::Display for $Type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl ::std::str::FromStr for $Type {
            type Err = ::std::num::ParseIntError;

            fn from_str(text: &str) -> Result<Self, ::std::num::ParseIntError> {
                text.parse().map(Self)
            }
        }
    )+};
}
