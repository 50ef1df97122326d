//! Pages in Chromium: every action by mouse and keyboard, with scripts and without, and their accessibility.

#[path = "../support/mod.rs"]
mod support;

mod chromium;
mod console;
mod desk;
mod sandbox;
mod story;
