"""What a training is made of beside its loop: learning rates, callbacks, class weights, when to stop."""
