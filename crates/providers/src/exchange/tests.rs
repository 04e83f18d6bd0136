//! What the tests of the adapters share whose turns are exchanges: a world for a turn, and the checks that hold for all
//! of them. What is a vendor's own stands in its adapter's tests.

pub(crate) mod conversations;
pub(crate) mod faults;
pub(crate) mod keys;
pub(crate) mod replay;
pub(crate) mod world;

/// Tests of one adapter that are the checks of the same names, for its rig.
macro_rules! checks {
    ($rig:ty, $from:ident: $($check:ident,)+) => {
        $(
            #[tokio::test]
            async fn $check() {
                $crate::exchange::tests::$from::$check::<$rig>().await;
            }
        )+
    };
}

pub(crate) use checks;
