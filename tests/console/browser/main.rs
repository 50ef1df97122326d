//! Pages in Chromium: every action by mouse and keyboard, with scripts and without, and their accessibility.

mod chromium;
mod console;
mod desk;
mod sandbox;
mod senders;
mod story;
mod tasks;
