//! What a session looks like: the read model of the console, the pictures, the API and the page.
