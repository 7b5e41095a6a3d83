//! Folders that every rank wants to make.
use std::any::Any;
use std::io;

use crate::session;
use crate::vote::is_alone;

/// The result of `create_dir`: where another rank was faster, the error says what to write.
pub fn new_folder<T: 'static>(mut result: T) -> T {
    if session::current().is_some()
        && !is_alone()
        && let Some(result) = (&mut result as &mut dyn Any).downcast_mut::<io::Result<()>>()
    {
        explain(result);
    }
    result
}

fn explain(result: &mut io::Result<()>) {
    if let Err(error) = result
        && error.kind() == io::ErrorKind::AlreadyExists
    {
        let text = format!(
            "{error}; all ranks make this folder, and another one was first: write `main_first(|| create_dir(path))` where it \
             may be there already, `main_only` where not"
        );
        *error = io::Error::new(error.kind(), text);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::{explain, new_folder};

    #[test]
    fn s36_the_error_of_a_folder_that_is_there_names_the_cure() {
        let mut result = Err(Error::from(ErrorKind::AlreadyExists));
        explain(&mut result);
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(error.to_string().contains("main_first"), "{error}");
        let mut other = Err(Error::from(ErrorKind::NotFound));
        explain(&mut other);
        assert!(!other.unwrap_err().to_string().contains("main_first"));
    }

    #[test]
    fn one_rank_keeps_the_error_of_the_system() {
        let error = new_folder(Err::<(), _>(Error::from(ErrorKind::AlreadyExists))).unwrap_err();
        assert!(!error.to_string().contains("main_first"), "{error}");
    }
}
