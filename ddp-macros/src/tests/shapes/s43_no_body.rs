//! Without a body.
//! refused: #[distributed] needs a function body

trait Learner {
    #[distributed]
    fn fit(&mut self);
}
